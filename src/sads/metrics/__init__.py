"""How far samples are from data: sliced Wasserstein distances (SW2, MSW2), and digits."""
