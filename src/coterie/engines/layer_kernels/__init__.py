"""Hand-written Triton kernels of dense and convolution layers over many clients."""
