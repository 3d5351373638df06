"""The styles of the report: the colours and shapes of the console, in light and dark, on any width."""

STYLE = """
:root { color-scheme: light dark; --ground: #f4f6f9; --surface: #ffffff; --ink: #131820; --soft: #525d6b;
        --line: #d9dfe7; --good: #0b7a4e; --warn: #8f5400; --bad: #b92727; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --surface: #151b23; --ink: #e9edf3; --soft: #a1adbd;
        --line: #2b3542; --good: #46c98b; --warn: #f0b252; --bad: #ff8279; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 18px clamp(12px, 2.5vw, 40px); font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
       background: var(--ground); }
header { display: flex; justify-content: space-between; align-items: baseline; flex-wrap: wrap; gap: 0 20px; }
h1 { font-size: 1.4rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1rem; margin: 0 0 .7rem; } p { margin: .2rem 0; }
.soft, .none, dt { color: var(--soft); }
section, .verdict, .tile { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; }
section { padding: 16px 18px; margin-top: 14px; }
.verdict { padding: 14px 18px; margin: 14px 0; border-left: 8px solid var(--soft); }
.verdict b { font-size: 1.9rem; letter-spacing: -.02em; }
.verdict.good { border-left-color: var(--good); } .verdict.good b { color: var(--good); }
.verdict.warn { border-left-color: var(--warn); } .verdict.warn b { color: var(--warn); }
.verdict.bad { border-left-color: var(--bad); } .verdict.bad b { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: 10px; }
.tile { border-top: 3px solid var(--good); padding: 10px 14px; } .tile.bad { border-top-color: var(--bad); }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; } .tile.bad b { color: var(--bad); }
.tile span { font-size: .85rem; color: var(--soft); }
.chart { overflow: auto; max-width: 100%; max-height: 640px; }
svg { font: 13px system-ui, sans-serif; display: block; max-width: none; }
@media (min-width: 960px) { svg[aria-label$="curves"], svg[aria-label^="timeline"] {
  width: 100%; height: auto; } }
svg text { fill: var(--ink); } svg text.in { fill: #fff; font-size: 12px; }
.grid { stroke: var(--soft); stroke-opacity: .3; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { color: var(--soft); font-size: .82rem; position: sticky; top: 0; background: var(--surface); }
 td, th { padding: 6px 14px 6px 0; text-align: left; white-space: nowrap; }
td { border-top: 1px solid var(--line); } .n { text-align: right !important; font-variant-numeric: tabular-nums; }
dl { margin: 0 0 .8rem; } dt { font-weight: 650; font-size: .85rem; } dd { margin: 0 0 .5rem; }
"""
