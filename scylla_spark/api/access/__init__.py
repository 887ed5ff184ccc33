"""Who asks and what he may: tokens, logins, what is written down of either, and routes about them."""
