"""Authentication and authorisation: tokens, logins, the audit, and their routes."""
