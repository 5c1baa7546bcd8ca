"""The backend `rknn`: Rockchip NPUs."""
