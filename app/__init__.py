"""The dashboard: it reads files and asks ``sim``; it never starts a rank."""
