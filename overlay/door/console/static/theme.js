// Sets the theme before the first paint: what the user chose, or else what the system prefers.
const chosen = localStorage.getItem("m4cast-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
