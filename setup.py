"""The build's one step beyond pyproject.toml: study files of the repository's `studies/` become data of `coterie.reproduce`."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

STUDIES = Path("studies")
MODULES = ("measurements.py", "simprox_figures.py")  # that study files name


class BuildWithStudies(build_py):
    """Copy the study files beside the module that reads them. An editable install finds those of the source tree."""

    def run(self) -> None:
        """Build the packages, then copy."""
        super().run()
        if not self.editable_mode:
            for study, copy in self._list_copies():
                self.mkpath(str(copy.parent))
                self.copy_file(str(study), str(copy))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """All files of the build, the copies among them."""
        return [*super().get_outputs(include_bytecode), *(str(copy) for _, copy in self._list_copies())]

    def _list_copies(self) -> list[tuple[Path, Path]]:
        place = Path(self.build_lib) / "coterie" / "reproduce" / "studies"
        return [(study, place / study.name) for study in [*sorted(STUDIES.glob("*.toml")), *(STUDIES / name for name in MODULES)]]


setup(cmdclass={"build_py": BuildWithStudies})
