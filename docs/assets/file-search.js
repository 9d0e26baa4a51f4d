/* Search in pages that are read from the disk: browsers allow no worker there, so it runs in a hidden frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.load(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.body.append(script);
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
