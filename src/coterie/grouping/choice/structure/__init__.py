"""The test of structure: are there distinct groups, or one population? Asked by methods (`ask`) and by `coterie inspect` (`distinct`).

`probes` asks clients; `views` makes points of the answers; `placing` puts them where both halves of the data agree; `ward` groups them;
`reference` draws one population of the same spread and `reference_test` compares with it; `steadiness` says whether groups are found again;
`cuts` decides which number of groups is told; `distinct` is the answer.
"""
