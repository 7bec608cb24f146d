"""One HTML page of a report: tiles, tables and charts in one file, without a script or a network.

It follows the reader's light or dark setting and prints in black on white. Names of groups and
topics come from ZooKeeper, where anybody may have written them: all text is escaped, and the page
forbids itself scripts and every other file.
"""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_vq.reports.charts import Html, html
from pyspark_vq.reports.figures import UNKNOWN, count_text, visible

#: What a browser may do for the page: use the style in it, and nothing else.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

#: Classes of colour: ok, warning, stalled, stopped, unknown for verdicts, c1 to c6 for all else.
STYLE: Final = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1d2327;--soft:#5c666e;
--line:#dfe3e6;--c1:#2a6fb8;--c2:#b8622a;--c3:#2c8a74;--c4:#8a4fb0;--c5:#a8871a;--c6:#b5395c;
--ok:#2f855a;--warning:#b7800d;--stalled:#c2571a;--stopped:#b3261e;--unknown:#7b858c}
@media (prefers-color-scheme:dark){:root{--page:#14181b;--card:#1d2327;--ink:#e8ebed;
--soft:#a3adb5;--line:#343c42;--c1:#6fa8e6;--c2:#e39a63;--c3:#5fc2a9;--c4:#c08fe3;--c5:#d8ba55;
--c6:#e57b98;--ok:#5fbf8c;--warning:#e0b04a;--stalled:#ef8f55;--stopped:#f0776f;
--unknown:#8d979e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.45 system-ui,
-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Liberation Sans","DejaVu Sans",sans-serif}
main{max-width:1216px;margin:0 auto;padding:28px 22px 60px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:34px 0 8px}
p{margin:4px 0 12px;max-width:90ch}.note,.left{color:var(--soft)}.lead{font-size:16px}
section>p{color:var(--soft);font-size:14px}
.note{font-size:13px;margin-left:6px}
.facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin:10px 0 18px;padding:0;list-style:none;
color:var(--soft);font-size:14px}.facts strong{color:var(--ink);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;
margin:12px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;
border-left:4px solid var(--line)}.tile .figure{font-size:24px;font-weight:600;
overflow-wrap:anywhere}.tile .label{color:var(--soft);font-size:13px}
.tile.ok{border-left-color:var(--ok)}.tile.warning{border-left-color:var(--warning)}
.tile.stalled{border-left-color:var(--stalled)}.tile.stopped{border-left-color:var(--stopped)}
.tile.unknown{border-left-color:var(--unknown)}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;
margin:10px 0;overflow-x:auto}.card h3{margin:0 0 10px;font-size:15px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:0 14px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--soft);font-weight:600;border-bottom:1px solid var(--line);
padding:5px 10px 5px 0;vertical-align:bottom}
td{border-bottom:1px solid var(--line);padding:5px 10px 5px 0;vertical-align:top;
overflow-wrap:anywhere;min-width:12ch;max-width:48ch}tr:last-child td{border-bottom:0}
th.n,td.n{text-align:right;padding-right:18px}td.n{overflow-wrap:normal;
white-space:nowrap;min-width:0}
th.n:last-child,td.n:last-child{padding-right:0}.scroll{overflow-x:auto}
td:last-child:not(.n){min-width:30ch;max-width:none}td.u{color:var(--soft)}
.do{margin-top:3px;color:var(--soft)}tr.small td,tr.small .tag,tr.small .do{color:var(--unknown)}
code{font:12.5px/1.4 ui-monospace,"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace;
background:color-mix(in srgb,var(--line) 45%,transparent);border-radius:3px;padding:1px 4px;
overflow-wrap:anywhere;-webkit-box-decoration-break:clone;box-decoration-break:clone}
code span{display:inline-block;max-width:100%}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.55
ui-monospace,"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace}
h1,p,li,.label{overflow-wrap:anywhere}
.left{font-size:13px;margin:8px 0 0}
.tag{display:inline-block;white-space:nowrap;font-weight:600}
.tag::before{content:"";display:inline-block;width:9px;height:9px;border-radius:50%;
margin-right:6px;background:currentColor}
.tag.ok{color:var(--ok)}.tag.warning{color:var(--warning)}.tag.stalled{color:var(--stalled)}
.tag.stopped{color:var(--stopped)}.tag.unknown{color:var(--unknown)}
.bars{display:grid;gap:6px}
.bar{display:grid;grid-template-columns:minmax(120px,34%) 1fr 104px;gap:10px;
align-items:center;font-size:13.5px}.bar .name{overflow-wrap:anywhere}
.bar .value{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.bar.unknown .value{color:var(--soft)}
.track{height:14px;background:color-mix(in srgb,var(--line) 55%,transparent);border-radius:3px;
display:block}.fill{display:block;height:100%;border-radius:3px}
.shares{display:flex;height:26px;border-radius:5px;overflow:hidden;gap:2px;
background:var(--line)}.part{flex-basis:0;min-width:3px}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;list-style:none;margin:10px 0 0;padding:0;
font-size:13.5px}.key{display:inline-block;width:11px;height:11px;border-radius:3px;
margin-right:7px}.key.dashed{opacity:.6}
.c1{--it:var(--c1)}.c2{--it:var(--c2)}.c3{--it:var(--c3)}.c4{--it:var(--c4)}.c5{--it:var(--c5)}
.c6{--it:var(--c6)}.ok{--it:var(--ok)}.warning{--it:var(--warning)}.stalled{--it:var(--stalled)}
.stopped{--it:var(--stopped)}.unknown{--it:var(--unknown)}
.fill,.part,.key{background:var(--it)}
svg.lines{width:100%;height:262px;padding:18px 12px 32px 82px;display:block;overflow:visible}
.grid{stroke:var(--line);stroke-width:1}
.tick{fill:var(--soft);font-size:12px}.pair .between{display:none}
.line{fill:none;stroke:var(--it);stroke-width:2;
vector-effect:non-scaling-stroke;stroke-linejoin:round}
.line.dashed{stroke-dasharray:6 4}.dot{fill:var(--it)}
polygon.band,.key.band{fill:var(--it);opacity:.18}
line.limit{stroke:var(--stopped);stroke-width:1.5;stroke-dasharray:3 3}
text.limit{fill:var(--stopped)}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media screen and (max-width:700px){main{padding:18px 12px 40px}h1{font-size:21px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.tile .figure{font-size:20px}
.tick.between{display:none}svg.lines{padding-left:74px}
.bar{grid-template-columns:1fr auto;gap:2px 10px}.bar .name{grid-column:1/3}
table,tbody,tr,td{display:block}thead{display:none}tr{padding:8px 0;
border-bottom:1px solid var(--line)}tr:last-child{border-bottom:0}
td,td:last-child:not(.n),td.n{display:grid;grid-template-columns:minmax(90px,28%) minmax(0,1fr);
gap:10px;border:0;padding:2px 0;max-width:none;min-width:0;text-align:left;white-space:normal}
td::before{content:attr(data-label);color:var(--soft)}td.e,td.n.e,td.e:last-child{display:none}}
@media print{@page{margin:14mm 12mm}:root{color-scheme:light;--page:#fff;--card:#fff;--ink:#000;
--soft:#444;--line:#ccc;--c1:#2a6fb8;--c2:#b8622a;--c3:#2c8a74;--c4:#8a4fb0;--c5:#a8871a;
--c6:#b5395c;--ok:#2f855a;--warning:#b7800d;--stalled:#c2571a;--stopped:#b3261e;--unknown:#6b757c}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
main{max-width:none;padding:0}.card:has(svg),.card:has(.bars),.card:has(.shares),
.tile,tr,.bar,svg.lines{break-inside:avoid}.tiles{grid-template-columns:repeat(auto-fit,minmax(96px,1fr))}
.tile .figure{font-size:17px}
h2,h3{break-after:avoid}.card,.scroll{overflow:visible}
td,td:last-child:not(.n){min-width:0}thead{display:table-header-group}body{font-size:11px}
table,.bar,.legend{font-size:9.5px}.note,.left,section>p{font-size:10px}.tick{font-size:10px}
code,pre{font-size:9px}
th,td,td.n{padding:4px 7px 4px 0}td{min-width:9ch}th.n,td.n{padding-right:9px}
td.n{white-space:normal;min-width:0}.bar{grid-template-columns:34% 1fr 90px}}
"""


#: Cells that say nothing.
_NOTHING: Final = frozenset({"", "-", "·", UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure. ``kind`` is a class of colour."""

    label: str
    figure: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: a title, a sentence or two, and blocks of HTML one below the other."""

    title: str
    note: str = ""
    blocks: Sequence[Html] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report: facts are short pairs of name and value under the title."""

    title: str
    lead: str
    facts: Sequence[tuple[str, str]] = ()
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()
    footer: str = ""


def tiles(items: Sequence[Tile]) -> Html:
    """Return a row of large figures."""
    found = "".join(
        f'<div class="tile {html(each.kind)}"><div class="figure">{html(each.figure)}</div>'
        f'<div class="label">{html(each.label)}</div></div>'
        for each in items
    )
    return Html(f'<div class="tiles">{found}</div>')


def tag(kind: str, text: str = "") -> Html:
    """Return a verdict with its colour; ``text``: what is shown, unless it is the kind itself."""
    return Html(f'<span class="tag {html(kind)}">{html(text or kind)}</span>')


def advice(text: str, **names: str) -> Html:
    """Return what to do, with what stands between backticks as commands.

    ``names`` are put in at ``{name}``: in a command each is one word of a shell, whatever is in it.
    """
    parts = text.split("`")
    quoted = {name: shlex.quote(visible(each)) for name, each in names.items()}
    return Html(
        "".join(
            _command(part.format(**quoted)) if number % 2 else html(part.format(**names))
            for number, part in enumerate(parts)
        )
    )


def _command(text: str) -> str:
    """Return a command that is broken between words: an option has hyphens of its own."""
    words = " ".join(f"<span>{html(word)}</span>" for word in text.split(" "))
    return f"<code>{words}</code>"


def card(title: str, block: Html) -> Html:
    """Return a block in a frame, below a title if there is one; "" for an empty block."""
    above = f"<h3>{html(title)}</h3>" if title else ""
    return Html(f'<div class="card">{above}{block}</div>') if block else Html("")


def pair(*blocks: Html) -> Html:
    """Return blocks side by side where the window is wide enough."""
    return Html(f'<div class="pair">{"".join(blocks)}</div>')


def then(cause: object, to_do: object) -> Html:
    """Return a cause, and below it what to do; either may be empty."""
    if not to_do:
        return html(cause)
    return Html(f'{html(cause)}<div class="do">{html(to_do)}</div>' if cause else html(to_do))


def table(
    rows: Sequence[Sequence[object]],
    *,
    columns: Sequence[str],
    numbers: Sequence[str] = (),
    optional: Collection[str] = (),
    small: Collection[int] = (),
    total: int | None = None,
    rest: str = "",
) -> Html:
    """Return a table.

    Args:
        rows: One cell for each column; ``Html`` as it is, all else escaped.
        columns: The names above.
        numbers: Which of them are aligned to the right.
        optional: Which of them are left out when no row says anything there.
        small: Numbers of rows that matter less: they are grey.
        total: How many rows there are; what is not among ``rows`` is told to be left out.
        rest: Where the others are.
    """
    right = set(numbers)
    kept = [
        at
        for at, name in enumerate(columns)
        if name not in optional or any(str(row[at]) not in _NOTHING for row in rows)
    ]
    kinds = ["n" if each in right else "" for each in columns]
    head = "".join(f'<th class="{kinds[at]}">{html(columns[at])}</th>' for at in kept)
    body = "".join(
        ('<tr class="small">' if number in small else "<tr>")
        + "".join(_cell(columns[at], kinds[at], row[at]) for at in kept)
        + "</tr>"
        for number, row in enumerate(rows)
    )
    left_out = (len(rows) if total is None else total) - len(rows)
    told = ""
    if not rows:
        told = '<p class="left">There are none.</p>'
    elif left_out > 0:
        told = f'<p class="left">{html(count_text(left_out))} more are left out{html(rest)}.</p>'
    return Html(
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{told}"
        if rows
        else told
    )


def _cell(column: str, kind: str, cell: object) -> str:
    if cell == UNKNOWN:
        kind = f"{kind} u"
    elif cell in _NOTHING:
        kind = f"{kind} e"
    return f'<td class="{kind}" data-label="{html(column)}"><bdi>{html(cell)}</bdi></td>'


def render(page: Page) -> str:
    """Return the whole page."""
    facts = "".join(
        f"<li>{html(name)} <strong><bdi>{html(value)}</bdi></strong></li>"
        for name, value in page.facts
    )
    sections = "".join(
        f"<section><h2>{html(each.title)}</h2>"
        + (f"<p>{html(each.note)}</p>" if each.note else "")
        + "".join(each.blocks)
        + "</section>"
        for each in page.sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html(POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{html(page.title)}</title><style>{STYLE}</style></head><body><main>"
        f'<header><h1>{html(page.title)}</h1><p class="lead">{html(page.lead)}</p>'
        f'<ul class="facts">{facts}</ul></header>'
        + (tiles(page.tiles) if page.tiles else "")
        + sections
        + (f"<footer>{html(page.footer)}</footer>" if page.footer else "")
        + "</main></body></html>\n"
    )
