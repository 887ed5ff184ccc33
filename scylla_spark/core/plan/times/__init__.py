"""Times that rules name: cron, intervals and calendars, in time zones whose clocks are set."""
