// Before the first paint: the colours that this browser chose last time. Not a module, so that it runs at once.
try {
  const theme = localStorage.getItem("fleetgate.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the system's colours.
}
