"use strict";
// Begin: every section of the page is drawn by the part of its kind.

sads.startTheme();
sads.startCopying();
for (const content of sads.data) {
  sads.parts[content.kind]?.(document.getElementById(content.id), content);
}
document.documentElement.dataset.ready = "yes"; // for those who wait for it
