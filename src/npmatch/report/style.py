"""The page's style sheet: one column of cards, light or dark by the system's setting, readable on a phone."""

# Standalone figures and the page of `npmatch serve` use these colours too.
PALETTE = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --edge: #e3e7ec; --ink: #1d2733; --muted: #647182; --grid: #e6eaef;
  --line-1: #2b6cb0; --line-2: #c77a1f; --line-3: #2f8f7b;
  --line-4: #a34a6e; --line-5: #6c5fb3; --line-6: #7d8590;
  --right: 43 108 176; --wrong: 190 74 60; --good: #22795f; --bad: #b3402f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11161c; --card: #181f27; --edge: #28313c; --ink: #e4e9ef; --muted: #94a1b0; --grid: #29323d;
    --line-1: #6cabe8; --line-2: #e5a552; --line-3: #5fc2ab;
    --line-4: #dc84a8; --line-5: #a79cee; --line-6: #98a2ae;
    --right: 44 104 166; --wrong: 186 84 70; --good: #6cc7a8; --bad: #ee8d7c;
  }
}
"""

CSS = (
    PALETTE
    + """
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 66rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
h1 { margin: 0; font-size: 1.75rem; line-height: 1.2; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 0 0 .25rem; font-size: 1.15rem; font-weight: 620; }
h3 { margin: 1.25rem 0 .5rem; font-size: .95rem; font-weight: 600; }
p { margin: 0 0 .75rem; max-width: 54rem; text-wrap: pretty; }
.lead, .facts, figcaption, small { color: var(--muted); }
.warning { color: var(--bad); }
.facts { margin: .4rem 0 0; font-size: .95rem; }
section {
  margin-top: 1.25rem; padding: 1.35rem 1.5rem 1.5rem; background: var(--card);
  border: 1px solid var(--edge); border-radius: 12px;
}
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.4rem, 1fr)); gap: 1.1rem 1.25rem; }
.tile b { display: block; font-size: 1.7rem; font-weight: 620; line-height: 1.25; white-space: nowrap; }
.tile span { font-size: .9rem; font-weight: 600; }
.tile small { display: block; font-size: .8rem; line-height: 1.4; overflow-wrap: anywhere; }
b, td, th { font-variant-numeric: tabular-nums; }
.panels { display: grid; gap: 1.5rem; }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.multiples { display: grid; gap: 1.25rem 1.5rem; align-items: end; }
.multiples { grid-template-columns: repeat(auto-fill, minmax(min(100%, 12.5rem), 1fr)); }
.multiples h3 { margin: 0; font-size: .88rem; line-height: 1.3; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin-top: 1.25rem; }
.wide > figure { min-width: 38rem; }
#methods .plain { font-size: .87rem; }
figure { margin: 0; }
figure > svg { display: block; width: 100%; height: auto; overflow: visible; }
.beside { display: grid; gap: 1rem 3rem; align-items: center; }
.beside { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.beside .words { display: grid; gap: 1.1rem; }
.beside .tile b { font-size: 1.45rem; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit !important; }
figcaption { margin-top: .35rem; font-size: .86rem; line-height: 1.45; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th { font-weight: 600; text-align: left; }
.plain { width: 100%; }
.plain th, .plain td { padding: .42rem .75rem .42rem 0; border-bottom: 1px solid var(--edge); }
.plain thead th { color: var(--muted); font-weight: 500; font-size: .85rem; }
.plain tr > :last-child { padding-right: 0; }
.plain .n { text-align: right; white-space: nowrap; }
.plain .best { font-weight: 680; }
.plain .note { display: block; max-width: 22rem; color: var(--bad); font-size: .8rem; line-height: 1.35; }
.config td { font: .82rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.config td:first-child { color: var(--muted); width: 40%; }
.confusion { font-size: .8rem; margin: 0 auto; border-collapse: separate; border-spacing: 2px; }
.confusion td {
  min-width: 2.5rem; height: 2.1rem; padding: 0 .2rem; text-align: center;
  background: rgb(var(--tone) / var(--depth)); border-radius: 5px;
}
.confusion td.right { --tone: var(--right); }
.confusion td.wrong { --tone: var(--wrong); }
.confusion td.deep { color: #fff; }
.confusion th { font-weight: 500; padding: .1rem .5rem; }
.confusion th span { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.confusion tbody th span { max-width: 12rem; unicode-bidi: isolate; }
.confusion tbody th { text-align: right; position: sticky; left: 0; background: var(--card); }
.confusion thead th { vertical-align: bottom; padding: .4rem .1rem; }
.confusion thead th span { max-height: 12rem; writing-mode: vertical-rl; transform: rotate(180deg); }
.confusion.dense { font-size: .68rem; }
.confusion.dense td { min-width: 1.55rem; height: 1.55rem; padding: 0; border-radius: 4px; }
.shots { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.2rem, 1fr)); gap: 1.1rem; }
.shot img {
  display: block; width: 100%; aspect-ratio: 1; object-fit: contain;
  border-radius: 8px; background: var(--page);
}
.shot img.crisp { image-rendering: pixelated; }
.shot strong { display: block; color: var(--ink); font-weight: 600; overflow-wrap: anywhere; }
.shot .good { color: var(--good); }
.shot .bad { color: var(--bad); }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--line-1); font-size: .92rem; }
details > *:not(summary) { margin-top: .75rem; }
footer { margin-top: 1.5rem; color: var(--muted); font-size: .82rem; }
@media (max-width: 36rem) {
  body { padding: 1.25rem .75rem 3rem; }
  h1 { font-size: 1.4rem; }
  section { padding: 1.1rem 1rem 1.2rem; border-radius: 10px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 1rem; }
  .tile b, .beside .tile b { font-size: 1.35rem; }
  .beside { grid-template-columns: minmax(0, 1fr); }
  .beside .words { grid-template-columns: 1fr 1fr; gap: 1rem; }
  .shots, .multiples { grid-template-columns: repeat(2, 1fr); gap: 1rem; }
  .plain { font-size: .82rem; }
  .plain th, .plain td { padding-right: .4rem; }
  .confusion { font-size: .7rem; }
  .confusion td { min-width: 1.9rem; height: 1.8rem; padding: 0; }
  .confusion tbody th span { max-width: 5.5rem; }
}
@media print {
  body { max-width: none; padding: 0; background: none; }
  section { break-inside: avoid; border: none; padding: 0; }
}
"""
)
