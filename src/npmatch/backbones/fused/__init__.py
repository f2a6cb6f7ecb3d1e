"""The training pass of a wide residual network as hand-written CUDA (Triton) kernels; imported only on CUDA."""
