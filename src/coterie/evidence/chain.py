"""The chain of manifests: which segments are those that the study wrote, in the order in which it wrote them.

A manifest must be the one that the segment after it names, or the head, if it is the last. Where that cannot be told, because what comes
after is damaged itself, it must follow on the one before. So one damaged segment does not put its neighbours in doubt.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.evidence.head import Link, StudyHead
from coterie.evidence.manifest import Manifest


@dataclass(frozen=True)
class Chain:
    """The manifests that could be read, and what is known of the chain's ends."""

    start: Link
    head: StudyHead | None  # None: damaged or lost
    manifests: Mapping[str, Manifest]
    hashes: Mapping[str, str]  # of the manifests

    def previous(self, name: str) -> Link:
        """What a segment follows on, now that others may have been set aside."""
        follows = self.head.follows if self.head is not None else {}
        return follows.get(name, self.manifests[name].previous)

    def broken(self, names: list[str]) -> dict[str, str]:
        """By segment that is missing or does not belong: what is wrong. Segments without a manifest are not told of."""
        wrong: dict[str, str] = {}
        end = self.head.last if self.head is not None else None
        named = end  # by what comes after; None: not known
        for place in reversed(range(len(names))):
            name, before = names[place], names[place - 1] if place else ""
            beyond = end is not None and name > end.segment  # written a moment before a kill: the head does not know it
            if named is not None and named.segment > name:
                wrong[named.segment] = "is missing"
                named = None
            if name not in self.manifests:
                named = named if beyond else None
                continue
            if named is not None and named.segment == name:
                fits = self.hashes[name] == named.sha256
            else:
                fits = (named is None or beyond) and self._follows(name, before)
            if not fits:
                wrong[name] = "is not what the chain of segments names"
            if not beyond:
                named = self.previous(name) if fits else None
        if named is not None and named.segment:
            wrong[named.segment] = "is missing"
        return wrong

    def begins_otherwise(self, names: list[str]) -> bool:
        """Whether the segments say that the study was another: the last of them, or, of before studies could grow, the first."""
        told = [self.manifests[name].study for name in names if name in self.manifests and self.manifests[name].study]
        if told:
            return told[-1] != self.start.sha256
        return bool(names) and names[0] in self.manifests and not (link := self.previous(names[0])).segment and link != self.start

    def _follows(self, name: str, before: str) -> bool:
        link = self.previous(name)
        if before:
            return before in self.hashes and link == Link(before, self.hashes[before])
        return link == self.start or (self.head is None and not link.segment)  # without a head, that is asked of the study as a whole
