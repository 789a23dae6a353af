"""The frame of every page: head, style sheet, mark. Nothing in it refers to another file."""

from __future__ import annotations

from skep.report import theme
from skep.report.markup import Markup, join, tag, text, trusted

# Scripts, fonts and requests are forbidden to the page itself, whatever a model name may hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_CSS = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 FONT;font-variant-numeric:tabular-nums}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 24px}
header{padding-top:44px}
.mark{display:flex;align-items:center;gap:9px;margin:0 0 20px;color:var(--muted);font-size:14px}
.mark svg{width:24px;height:24px}
.mark b{color:var(--ink);letter-spacing:.01em}
h1{margin:0;font-size:clamp(26px,4.6vw,42px);line-height:1.12;letter-spacing:-.022em;overflow-wrap:anywhere}
.where{margin:10px 0 0;color:var(--muted);overflow-wrap:anywhere}
.lead{margin:22px 0 0;max-width:46em;font-size:clamp(17px,2vw,20px);line-height:1.5}
h2{margin:52px 0 14px;font-size:22px;letter-spacing:-.012em}
h3{margin:0 0 8px;font-size:13px;font-weight:600;color:var(--muted)}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
.banner{margin:20px 0 0;padding:12px 16px;border:1px solid var(--edge);border-left:5px solid var(--edge);
border-radius:10px;background:var(--paper);overflow-wrap:anywhere}
.banner strong{text-transform:uppercase;font-size:13px;letter-spacing:.06em;margin-right:4px}
.banner.simulated{border-left-color:var(--sky)}.banner.simulated strong{color:var(--sky)}
.banner.incomplete{border-left-color:var(--rose)}.banner.incomplete strong{color:var(--rose)}
.banner.differs{border-left-color:var(--honey)}
.banner.limited{border-left-color:var(--honey)}.banner.limited strong{color:var(--honey)}
.cards{display:grid;grid-template-columns:repeat(4,1fr);gap:14px;margin:30px 0 0}
.card{margin:0;padding:18px 20px 16px;border:1px solid var(--edge);border-radius:14px;background:var(--paper)}
.card dt{color:var(--muted);font-size:14px}
.card dd{margin:0}
.card .value{margin:4px 0 3px;font-size:clamp(26px,3.5vw,38px);font-weight:650;
line-height:1.15;letter-spacing:-.025em}
.card:first-child .value{color:var(--honey)}
.card .note{color:var(--muted);font-size:13.5px;line-height:1.4}
.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}
figure{display:flex;flex-direction:column;margin:0;padding:18px 18px 12px;
border:1px solid var(--edge);border-radius:14px;background:var(--paper)}
figcaption{margin:0 2px 10px}
figcaption strong{display:block}
figcaption span{display:block;color:var(--muted);font-size:14px;line-height:1.4}
figure svg{display:block;margin-top:auto;width:100%;height:auto}
figure svg text{font-family:inherit}
.wide{grid-column:1/-1}.roll{overflow-x:auto}.roll svg{min-width:640px}
.empty{display:grid;place-items:center;aspect-ratio:16/9;margin:0;color:var(--muted)}
.scroll{overflow-x:auto;border:1px solid var(--edge);border-radius:14px;background:var(--paper)}
table{width:100%;border-collapse:collapse;font-size:14px}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{padding:9px 8px;text-align:right;white-space:nowrap}
thead th{color:var(--muted);font-weight:500;font-size:12.5px;line-height:1.3;vertical-align:bottom}
thead tr.group th{padding-bottom:0;text-align:center;color:var(--ink);font-weight:600}
thead tr.group th[rowspan]{padding-bottom:9px;color:var(--muted);font-weight:500;text-align:left}
thead tr.group th[colspan]{border-bottom:1px solid var(--edge);padding-bottom:5px}
tbody tr{border-top:1px solid var(--edge)}
tbody tr.best{background:var(--glow)}
tbody th{font-weight:650}
th:first-child,tbody th{padding-left:14px;position:sticky;left:0;background:var(--paper);text-align:left}
thead tr+tr th:first-child{position:static;text-align:right}
tbody tr.best th{background:var(--glow)}
td.left,th.left{text-align:left}
td.note{text-align:left;white-space:normal;min-width:11em;color:var(--muted)}
td.wide{text-align:left;white-space:normal;min-width:18em;overflow-wrap:anywhere}
td.soft{color:var(--muted)}
td.bad{color:var(--rose);font-weight:650}
.flag{display:inline-block;margin-right:6px;padding:0 7px;border:1px solid currentColor;border-radius:99px;
font-size:12px;line-height:1.6;color:var(--honey);white-space:nowrap}
.below{margin:10px 2px 0;color:var(--muted);font-size:14px;max-width:60em}
.scroll+.scroll{margin-top:14px}.charts+.scroll,.below+.scroll{margin-top:16px}
.attempts{margin:10px 2px 0}.attempts summary{padding:6px 0;cursor:pointer;color:var(--muted);overflow-wrap:anywhere}
.attempts summary b{color:var(--ink);font-weight:600}.attempts[open] summary{padding-bottom:10px}
.checks{margin:0;padding:14px 20px 14px 38px;border:1px solid var(--edge);border-radius:14px;background:var(--paper)}
.checks li{padding:3px 0}
.legend{list-style:none;margin:0 0 16px;padding:14px 20px;border:1px solid var(--edge);border-radius:14px;
background:var(--paper);display:grid;grid-template-columns:repeat(auto-fill,minmax(26em,1fr));gap:6px 20px}
.legend li{display:flex;align-items:center;gap:10px;overflow-wrap:anywhere}.legend svg{flex:none;width:52px;height:16px}
td.up{color:var(--moss);font-weight:650}
.columns{columns:2;column-gap:16px}
.facts{break-inside:avoid;margin-bottom:16px;padding:18px 20px;
border:1px solid var(--edge);border-radius:14px;background:var(--paper)}
.facts dl{margin:0;font-size:14.5px}
.facts dl div{display:grid;grid-template-columns:9.5em minmax(0,1fr);gap:12px;padding:5px 0}
.facts dl div+div{border-top:1px solid var(--edge)}
.facts dt{color:var(--muted)}
.facts dd{margin:0;overflow-wrap:anywhere}
.terms{margin:0;padding:6px 20px;border:1px solid var(--edge);border-radius:14px;background:var(--paper)}
.terms div{display:grid;grid-template-columns:11em minmax(0,1fr);gap:14px;padding:10px 0}
.terms div+div{border-top:1px solid var(--edge)}
.terms dt{font-weight:600}
.terms dd{margin:0}
footer{margin-top:44px;padding-bottom:44px;color:var(--muted);font-size:14px;overflow-wrap:anywhere}
@media (max-width:960px){.cards{grid-template-columns:repeat(2,1fr)}}
@media (max-width:760px){.charts{grid-template-columns:minmax(0,1fr)}.columns{columns:1}}
@media (max-width:520px){main,header,footer{padding-left:14px;padding-right:14px}header{padding-top:26px}
h2{margin-top:40px}.cards{gap:10px;margin-top:22px}.card{padding:13px 14px 12px}.card .note{font-size:13px}
figure{padding:14px 10px 8px}.terms div{grid-template-columns:1fr;gap:1px}
.facts{padding:14px}.facts dl div{grid-template-columns:7em minmax(0,1fr)}}
@media print{@page{margin:12mm}body{background:#fff;font-size:11pt}main,header,footer{max-width:none;padding:0}
header{padding-top:0}h2{margin-top:22px;break-after:avoid}
figure,.card,.facts,tr,.terms div,.banner{break-inside:avoid}
.cards{grid-template-columns:repeat(4,1fr)}.charts{grid-template-columns:repeat(2,minmax(0,1fr))}.columns{columns:2}
.scroll{overflow:visible}table{font-size:8pt}thead th{font-size:7.5pt}
th,td{padding:4px 5px}td.note{min-width:0}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

_MARK = (
    '<svg viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="{0}" stroke-width="2" stroke-linecap="round">'
    '<path d="M7.5 6.5h9M5.3 11h13.4M4 15.5h16M3.5 20h17M9.5 2.5h5"/>'
    '<circle cx="12" cy="20" r="2.6" fill="{0}" stroke="none"/></svg>'
)


def document(title: str, *body: Markup) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", text(title)),
        tag("link", rel="icon", href="data:,"),
        tag("style", trusted(_style_sheet())),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def mark(what: str) -> Markup:
    return tag("p", trusted(_MARK.format(theme.HONEY)), join([tag("b", text("skep")), text(what)]), class_="mark")


def _style_sheet() -> str:
    day = _variables("#faf8f5", "#fdf3e3", {})
    night = _variables("#151311", "#302515", theme.NIGHT)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
    return f":root{{{day}}}{dark}{_CSS.replace('FONT', theme.FONT)}{theme.night_rules('svg')}"


def _variables(ground: str, glow: str, colours: dict[str, str]) -> str:
    named = {
        "ink": theme.INK,
        "muted": theme.MUTED,
        "edge": theme.GRID,
        "paper": theme.PAPER,
        "honey": theme.HONEY,
        "sky": theme.SKY,
        "rose": theme.ROSE,
        "moss": theme.MOSS,
    }
    chosen = "".join(f"--{name}:{colours.get(day, day)};" for name, day in named.items())
    return f"{chosen}--ground:{ground};--glow:{glow}"
