// The connection to the dashboard's server. If it is lost, the page tries again until it is back.

const AGAIN_MS = 1000;
const QUIET_MS = 6000; // without an update, an open connection counts as lost

export class Stream {
  /**
   * @param url of the server-sent events.
   * @param heard called with "snapshot" or "update", and the data.
   * @param changed called when the connection is lost or back.
   */
  constructor(url, heard, changed) {
    Object.assign(this, { url, heard, changed });
    this.lostAt = null; // milliseconds since the epoch, or null while the connection is open
    this.problem = "";
    this.heardAt = Date.now();
    setInterval(() => this.watch(), AGAIN_MS);
    this.open();
  }

  open() {
    const source = new EventSource(this.url);
    this.source = source;
    this.heardAt = Date.now();
    for (const kind of ["snapshot", "update"]) {
      source.addEventListener(kind, (event) => {
        if (source !== this.source) return;
        this.heardAt = Date.now();
        this.heard(kind, JSON.parse(event.data));
        if (this.lostAt !== null) {
          this.lostAt = null;
          this.problem = "";
          this.changed();
        }
      });
    }
    source.addEventListener("error", () => this.lose(source));
  }

  async lose(source) {
    if (source !== this.source) return;
    const refused = source.readyState === EventSource.CLOSED; // the server has answered with an error
    source.close();
    this.source = null;
    this.lostAt ??= Date.now();
    this.changed();
    this.problem = refused ? await this.refusal() : "";
    this.changed();
    setTimeout(() => this.open(), AGAIN_MS);
  }

  async refusal() {
    const patience = new AbortController();
    try {
      const answer = await fetch(this.url, { signal: patience.signal });
      return answer.ok ? "" : String(answer.status);
    } catch {
      return "";
    } finally {
      patience.abort();
    }
  }

  watch() {
    if (this.source && Date.now() - this.heardAt > QUIET_MS) this.lose(this.source);
    if (this.lostAt !== null) this.changed();
  }
}
