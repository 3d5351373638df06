"""The console: the page that a node serves to people, at the root of its web door.

`static/` is the page itself: plain HTML, CSS and JavaScript modules that browsers run as they are, with its views under
`views`, and under `vendor` the libraries that it uses, each with its licence. It is a client like others: everything
that it shows comes from the paths of docs/HTTP.md, with the rights of the token that its user gives it. `files` serves
it.

To show something more, write a module under `views` whose function fills a view, and name it in `VIEWS` of
`static/console.js`.
"""
