"""A terminal screen as SVG, drawn by rich. The output is reproducible."""

import io

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

BLACK, WHITE = (0x1C, 0x1C, 0x1C), (0xD0, 0xD0, 0xD0)
NORMAL = ["000000", "cd3131", "0dbc79", "e5e510", "2472c8", "bc3fbc", "11a8cd", "e5e5e5"]
BRIGHT = ["666666", "f14c4c", "23d18b", "f5f543", "3b8eea", "d670d6", "29b8db", "ffffff"]
THEME = TerminalTheme(BLACK, WHITE, *([tuple(bytes.fromhex(colour)) for colour in row] for row in (NORMAL, BRIGHT)))
# Size of a cell in rich's SVG.
CELL_WIDTH, CELL_HEIGHT = 12, 24.4
# rich's default format draws a window frame and loads a font from the network.
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 WIDTH HEIGHT">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px; }}
{styles}
</style>
<defs>
{lines}
</defs>
<rect width="100%" height="100%" rx="8" fill="#1c1c1c"/>
<g transform="translate(8, 8)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def svg(pane, size):
    """Draws `pane`, in the format of `tmux capture-pane -e -p`.

    >>> picture = svg("a<b \\x1b[1;38;5;203mred\\x1b[0m\\n", (10, 1))
    >>> "a&lt;b" in picture, "fill: #ff5f5f;font-weight: bold" in picture, picture == svg("a<b \\x1b[1;38;5;203mred\\x1b[0m\\n", (10, 1))
    (True, True, True)
    """
    console = Console(record=True, width=size[0], file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(pane), no_wrap=True, overflow="crop", end="")
    width, height = round(size[0] * CELL_WIDTH) + 16, round(size[1] * CELL_HEIGHT) + 16
    sized = FORMAT.replace("WIDTH", str(width)).replace("HEIGHT", str(height))
    return console.export_svg(theme=THEME, code_format=sized, font_aspect_ratio=0.6)
