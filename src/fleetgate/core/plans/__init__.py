"""Plan windows: a provider's own windows of a subscription (5 hours, a week), and what of them each class may use.

reading.py  what a response or an agent says about a window
rules.py    what the config says about plans, and which rule an account has
window.py   a window: how much of it is used, whom it holds back, and when that ends
burn.py     how fast it is used while batch work is on and off
runway.py   how fast a window is used, and when it runs dry
"""
