"""Large models on a GPU: steps as CUDA graphs, several clients in flight, batch norm and update in kernels of their own."""
