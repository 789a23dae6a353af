"""What the tests of reports read pages and pictures with."""

import re
from enum import Enum
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
from msgspec.structs import replace

HOSTILE = """<script>alert(1)</script>"><img src=x onerror='alert(2)'></style>&amp;\x00"""
VOID = {"meta", "link", "br", "hr"}


class Outline(HTMLParser):
    """Tags, attributes and text of a page; fails on a tag that is not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.tags = []
        self.attributes = []
        self.words = []
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def text(self):
        return " ".join(" ".join(self.words).split()).replace("\u00a0", " ")

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def plain(page):
    """The words of a page outside its pictures."""
    bare = re.sub(r"<svg.*?</svg>", " ", page.partition("</style>")[2], flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare)).replace("&#x27;", "'")


def words_of(svg):
    return [
        "".join(text.itertext())
        for text in ET.fromstring(svg).iter()
        if text.tag.rpartition("}")[2] == "text"
    ]


def colours_of(drawn):
    return set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', drawn))


def values_of(spec, name):
    """Everything that the layers of a chart hold under `name`."""
    return [row[name] for layer in spec["layer"] for row in layer["data"]["values"] if name in row]


def spoiled(record):
    """The record with every text in it replaced by a hostile one."""
    if isinstance(record, Enum):
        return record
    if isinstance(record, str):
        return HOSTILE
    if isinstance(record, dict):
        return {spoiled(key): spoiled(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return type(record)(map(spoiled, record))
    if isinstance(record, msgspec.Struct):
        return replace(
            record,
            **{name: spoiled(value) for name, value in msgspec.structs.asdict(record).items()},
        )
    return record
