"""Rockchip NPUs, through rknn-toolkit2 in an environment of its own."""
