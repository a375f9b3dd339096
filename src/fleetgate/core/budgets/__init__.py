"""Budgets: resources that are counted in amounts (calls, tokens, money), beside pools, which are counted in slots.

    rate.py      a budget that refills continuously: N per second, minute or hour, up to a burst
    window.py    a budget of N per window: a day, a week, a month, or a duration from the first use
    calendar.py  where days, weeks and months begin in a time zone

Both kinds answer one question, "when does this amount fit?", with whole numbers only.
"""
