"""How the page looks, and the little that it does."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --error: #c62828; --warning: #b26a00; --info: #1565c0; --fine: #2e7d32; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1300px; padding: 0 1.5rem 4rem; }
header { border-bottom: 1px solid var(--line); margin-bottom: 1rem; }
nav a { margin-right: 1.2rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
.scroll, #graph { overflow: auto; max-width: 100%; }
code { font-size: .86em; opacity: .8; }
details { border-left: 4px solid; margin: .8rem 0; padding-left: .8rem; }
details.error { border-color: var(--error); } details.warning { border-color: var(--warning); } details.info { border-color: var(--info); }
summary { cursor: pointer; }
#filter { padding: .3rem .5rem; width: 24rem; max-width: 100%; }
svg { max-width: 100%; height: auto; } svg text { text-anchor: middle; font-size: 13px; fill: currentColor; }
svg rect { fill: Canvas; stroke: var(--fine); stroke-width: 1.5; }
svg .error rect { stroke: var(--error); stroke-width: 2.5; } svg .warning rect { stroke: var(--warning); } svg .info rect { stroke: var(--info); }
svg .address rect { stroke: #888; stroke-dasharray: 4 3; }
svg .edge { fill: none; stroke: #888; stroke-width: 1.4; } svg .edge:hover { stroke: var(--info); stroke-width: 3; } svg marker path { fill: #888; }
.matrix td { text-align: center; padding: .15rem .4rem; } .matrix th[scope=col] { vertical-align: bottom; height: 9rem; padding: .2rem; }
.matrix th[scope=col] span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 22rem; overflow: hidden; }
.delivered { color: var(--fine); } .delayed { color: var(--warning); } .elsewhere { color: var(--info); }
.dropped, .loop { color: var(--error); font-weight: bold; }
td.dropped, td.loop { background: #c6282822; } td.delayed { background: #b26a0018; }
.legend span { margin-right: 1rem; }
"""

SCRIPT: Final = """
const filter = document.getElementById("filter");
if (filter) filter.addEventListener("input", () => {
  const wanted = filter.value.toLowerCase();
  for (const block of document.querySelectorAll("#findings details")) {
    const named = block.querySelector("summary").textContent.toLowerCase().includes(wanted);
    let shown = 0;
    for (const row of block.querySelectorAll("tr.finding")) {
      row.hidden = !(named || row.textContent.toLowerCase().includes(wanted));
      shown += !row.hidden;
    }
    block.hidden = shown === 0;
  }
});
"""
