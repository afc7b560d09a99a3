"""Grouping of more clients than a matrix of all pairs can hold.

Above `MANY` clients nothing takes the square of their number: principal directions are those of a keyed sample, the landmarks (`points`),
and k-means (`means`), spectral clustering (`spectra`) and trees (`trees`) go on from there, as do SimProx's similarities (`company`), CFL's
cuts (`cuts`) and NeighbourProx's neighbours (`neighbours`). Up to `MANY` the exact forms of `similarity` and `clusterers` are used, and
nothing here.
"""
