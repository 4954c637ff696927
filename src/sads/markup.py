"""Pieces of HTML that reports and notebooks share: facts, tables, small pictures.

Whatever is not a piece already is text: characters that end a line, ring or turn the direction of
writing are shown as escapes, and what HTML gives a meaning is escaped.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from sads.errors import printable

if TYPE_CHECKING:
    from torch import Tensor

THUMBNAIL = 72  # pixels of a small picture on the screen


def text(content: object) -> Markup:
    """Text from anywhere as HTML.

    >>> print(text("<b> & \\u202egnp.exe"))
    &lt;b&gt; &amp; \\u202egnp.exe
    """
    return content if isinstance(content, Markup) else escape(printable(content))


def element(name: str, *children: object, **attributes: object) -> Markup:
    """An element; `class_` is the attribute `class`, and what is None is left out.

    >>> print(element("b", "1 < 2", class_="sum"))
    <b class="sum">1 &lt; 2</b>
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), text(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(map(text, children))
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, inside)


def facts(rows: Mapping[str, object]) -> Markup:
    """Names and values, one of each in a row."""
    lines = (
        element("tr", element("th", name.strip(), scope="row"), element("td", value))
        for name, value in rows.items()
    )
    return element("table", element("tbody", *lines), class_="facts")


def unfolded(rows: Mapping[str, str]) -> dict[str, str]:
    """Names that stand for themselves: what was indented says what it belongs to."""
    unfolded, parent = {}, ""
    for name, value in rows.items():
        if not name.startswith(" "):
            parent = name
        unfolded[f"{parent}, {name.strip()}" if name.startswith(" ") else name] = value
    return unfolded


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Cells under titles."""
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    return element("table", element("thead", head), element("tbody", *body), class_="rows")


def card(title: object, *parts: object) -> str:
    """A result as a notebook shows it."""
    return str(element("div", element("strong", title), *parts, class_="sads"))


def strip(pictures: Iterable[tuple["Tensor", str]]) -> Markup:
    """Small pictures of directions side by side, each with a caption."""
    shown = (
        element(
            "figure",
            picture(vector, caption),
            element("figcaption", caption, style="font-size:smaller"),
            style="display:inline-block;margin:0.4em 0.4em 0 0;text-align:center",
        )
        for vector, caption in pictures
    )
    return element("div", *shown)


def picture(vector: "Tensor", description: str) -> Markup:
    """A direction (*shape) as a picture: from black to white, zero in the middle."""
    return Markup('<img src="{}" alt="{}" width="{}" style="image-rendering:pixelated">').format(
        png(direction_pixels(vector)), text(description), THUMBNAIL
    )


def direction_pixels(vector: "Tensor") -> Any:
    """The bytes of a direction as a picture, (height, width) or (height, width, 3).

    Three channels are colours; of other numbers the strongest one is shown. Data on a line are a
    row of pixels a channel.
    """
    values = vector.detach().double()
    if values.ndim != 3:
        values = values.reshape(1, len(values) if values.ndim > 1 else 1, -1)
    limit = float(values.abs().max()) or 1.0
    bytes_ = ((0.5 + values / limit / 2) * 255).round().byte()
    if len(values) == 3:
        return bytes_.permute(1, 2, 0).numpy()
    return bytes_[int(values.flatten(1).norm(dim=1).argmax())].numpy()


def png(pixels: Any) -> str:
    """A picture as the address of itself."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return data_url(file.getvalue(), "image/png")


def data_url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
