"""The table that maps the images of manifests to commands of this machine."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[3]


class ImageTableError(Exception):
    """The table of images cannot be used; the message names the entry and what is wrong."""


@dataclasses.dataclass(frozen=True)
class CommandMapping:
    """A command of the image and what runs in its place.

    Attributes
    ----------
    match
        First words of the command.
    run
        Words that replace them.
    """

    match: tuple[str, ...]
    run: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Image:
    """What stands for an image.

    Attributes
    ----------
    name
        Pattern of image names without tag or digest, as in a shell.
    path
        Directories in which a command is looked up.
    environment
        Variables the image sets.
    command
        What runs when a container names no command.
    """

    name: str
    path: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: tuple[str, ...] = ()
    mappings: tuple[CommandMapping, ...] = ()

    def argv(self, command: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """Return the words to run for a container's command and arguments."""
        words = list(command or self.command) + list(arguments)
        for mapping in self.mappings:
            if tuple(words[: len(mapping.match)]) == mapping.match:
                return [*mapping.run, *words[len(mapping.match) :]]
        return words


def base_name(image: str) -> str:
    """Return an image's name without tag, digest and the parts that are implied."""
    name = image.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    name = head + slash + last.split(":", 1)[0]
    return name.removeprefix("docker.io/").removeprefix("library/")


class ImageTable:
    """All known images."""

    def __init__(self, images: Sequence[Image], source: str) -> None:
        self._images = images
        self.source = source

    def find(self, image: str) -> Image | None:
        """Return the first entry whose pattern fits, or None."""
        name = base_name(image)
        return next((entry for entry in self._images if fnmatch.fnmatch(name, entry.name)), None)


def load_images(path: Path) -> ImageTable:
    """Read a table of images.

    Parameters
    ----------
    path
        YAML file with a list ``images``. In its texts ``{python}`` stands for the interpreter,
        ``{bin}`` for its directory, ``{repository}`` for this repository, ``{here}`` for the
        directory of the table.

    Raises
    ------
    ImageTableError
        The file cannot be read, or an entry is malformed.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = content["images"]
        assert isinstance(entries, list), "images is not a list"
    except (OSError, yaml.YAMLError, KeyError, TypeError, AssertionError) as error:
        raise ImageTableError(f"{path}: no readable list 'images' ({error})") from None
    return ImageTable([_image(path, entry) for entry in entries], str(path))


def _image(path: Path, entry: Any) -> Image:
    places = {
        "python": sys.executable,
        "bin": str(Path(sys.executable).parent),
        "repository": str(REPOSITORY),
        "here": str(path.parent.resolve()),
    }

    def fill(text: Any) -> str:
        return str(text).format(**places)

    try:
        return Image(
            name=entry["name"],
            path=tuple(fill(item) for item in entry.get("path", [])),
            environment={
                name: fill(value) for name, value in (entry.get("environment") or {}).items()
            },
            command=tuple(fill(word) for word in entry.get("command", [])),
            mappings=tuple(
                CommandMapping(
                    tuple(map(str, mapping["match"])),
                    tuple(fill(word) for word in mapping["run"]),
                )
                for mapping in entry.get("commands", [])
            ),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ImageTableError(f"{path}: the entry {entry!r} lacks or misspells {error}") from None


def system_path() -> tuple[str, ...]:
    """Return the directories with the programs every machine has."""
    return (*(part for part in os.defpath.split(":") if part), "/usr/local/bin")
