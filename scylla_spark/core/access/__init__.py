"""Who may do what, and what nobody may see."""
