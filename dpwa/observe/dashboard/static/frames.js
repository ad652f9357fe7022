// Draws the page in pieces, one in each frame, and draws nothing while the page is hidden.

export class Frames {
  /** @param pieces functions that draw, in the order in which they run. */
  constructor(pieces) {
    this.pieces = pieces;
    this.due = new Set();
    this.asked = false;
    document.addEventListener("visibilitychange", () => this.go());
  }

  /** Run these pieces in the next frames. Without arguments, run all pieces. */
  ask(...pieces) {
    for (const piece of pieces.length ? pieces : this.pieces) this.due.add(piece);
    this.go();
  }

  go() {
    if (this.asked || document.hidden || !this.due.size) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      const piece = this.pieces.find((one) => this.due.has(one));
      this.due.delete(piece);
      try {
        piece?.();
      } finally {
        this.go();
      }
    });
  }
}
