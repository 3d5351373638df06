"""The report of gaps and audit: `page` builds the HTML page, `charts` its SVG charts."""
