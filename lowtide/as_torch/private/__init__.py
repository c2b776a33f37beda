"""What libraries ask of PyTorch's private modules: few names, real where they compute."""
