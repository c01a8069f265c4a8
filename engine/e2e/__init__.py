"""End-to-end rows: the real engine's processes under tokengap, and its report checked against their truth files."""
