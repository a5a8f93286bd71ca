"""Keyed, resumable streams of correlated noise and the kernel that draws them."""
