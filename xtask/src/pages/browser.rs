//! Headless Chromium, controlled over its debugging pipe: JSON messages terminated by a zero byte, on descriptors 3 and 4.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde_json::{Value, json};

/// Time limit: a reply takes milliseconds, but the first takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// Events still to come after a page was loaded.
const SETTLE: Duration = Duration::from_millis(300);

/// How a page is looked at.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) dark: bool,
    pub(super) width: u32,
}

/// Captured page.
pub(super) struct Seen {
    /// Messages logged by the browser: errors, violations, script output.
    pub(super) complaints: Vec<String>,
    /// Requests other than for the page itself.
    pub(super) requests: Vec<String>,
    pub(super) text: String,
    pub(super) wider_than_window: bool,
    /// PNG of the whole page.
    pub(super) picture: Vec<u8>,
}

/// A running browser, ended when dropped.
pub(super) struct Browser {
    process: Child,
    to: File,
    from: Receiver<Value>,
    next: u64,
    session: String,
    events: Vec<Value>,
    _folder: tempfile::TempDir,
}

impl Browser {
    pub(super) fn start(program: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        let made = Command::new("mkfifo").arg(&to).arg(&from).status();
        anyhow::ensure!(made.context("mkfifo does not run")?.success(), "no pipe could be made");
        // A shell puts the pipes where the browser looks for them.
        let mut process = Command::new("sh")
            .args(["-c", r#"to=$1 from=$2; shift 2; exec "$@" 3<"$to" 4>"$from""#, "sh"])
            .args([&to, &from])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-sync",
            ])
            .args([
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                "about:blank",
            ])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a shell for the browser")?;
        // Read and write, so that opening does not wait for a browser that is not there.
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        let (writer, reader) = match (open(&to), open(&from)) {
            (Ok(writer), Ok(reader)) => (writer, reader),
            (Err(error), _) | (_, Err(error)) => {
                let _ = process.kill();
                return Err(error).context("cannot open the browser's pipes");
            }
        };
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(reader).split(0) {
                let Ok(message) = message
                    .map_err(anyhow::Error::from)
                    .and_then(|m| Ok(serde_json::from_slice(&m)?))
                else {
                    return;
                };
                if tell.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            to: writer,
            from: told,
            next: 0,
            session: String::new(),
            events: Vec::new(),
            _folder: folder,
        };
        browser
            .attach()
            .with_context(|| format!("{} does not answer; Debian's package is chromium", program.display()))?;
        Ok(browser)
    }

    fn attach(&mut self) -> anyhow::Result<()> {
        let target = self.ask("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attached = self.ask(
            "Target.attachToTarget",
            &json!({"targetId": target["targetId"], "flatten": true}),
        )?;
        attached["sessionId"]
            .as_str()
            .context("no session")?
            .clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.ask(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(())
    }

    /// Opens a page and captures its full length.
    pub(super) fn open(&mut self, page: &Path, look: Look) -> anyhow::Result<Seen> {
        let scheme = if look.dark { "dark" } else { "light" };
        self.ask(
            "Emulation.setEmulatedMedia",
            &json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        )?;
        let size = json!({"width": look.width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", &size)?;
        self.events.clear();
        let url = format!("file://{}", page.display());
        self.ask("Page.navigate", &json!({"url": url}))?;
        self.wait_for("Page.loadEventFired")?;
        let text = self.evaluate("document.body.innerText")?;
        let wide = self.evaluate("document.documentElement.scrollWidth > window.innerWidth")?;
        let picture = self.ask(
            "Page.captureScreenshot",
            &json!({"format": "png", "captureBeyondViewport": true}),
        )?;
        self.settle();
        let told = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Log.entryAdded" => Some(params["entry"]["text"].to_string()),
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"]["text"].to_string()),
                "Runtime.consoleAPICalled" => Some(params["args"].to_string()),
                _ => None,
            }
        };
        let asked = |event: &Value| {
            let sent = event["method"] == "Network.requestWillBeSent";
            let to = event["params"]["request"]["url"].as_str()?;
            (sent && to != url).then(|| to.to_owned())
        };
        Ok(Seen {
            complaints: self.events.iter().filter_map(told).collect(),
            requests: self.events.iter().filter_map(asked).collect(),
            text: text.as_str().unwrap_or_default().to_owned(),
            wider_than_window: wide.as_bool().context("its width is not known")?,
            picture: decode(&picture["data"])?,
        })
    }

    /// Prints the open page as PDF.
    pub(super) fn print(&mut self) -> anyhow::Result<Vec<u8>> {
        let printed = self.ask(
            "Page.printToPDF",
            &json!({"printBackground": false, "preferCSSPageSize": true}),
        )?;
        decode(&printed["data"])
    }

    fn evaluate(&mut self, script: &str) -> anyhow::Result<Value> {
        let answer = self.ask(
            "Runtime.evaluate",
            &json!({"expression": script, "returnByValue": true}),
        )?;
        Ok(answer["result"]["value"].clone())
    }

    fn ask(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = Value::from(self.session.as_str());
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.to.write_all(&bytes)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let message = self.receive(until).with_context(|| format!("no answer to {method}"))?;
            if message["id"] == self.next {
                if !message["error"].is_null() {
                    bail!("{method}: {}", message["error"]);
                }
                return Ok(message["result"].clone());
            }
            self.events.push(message);
        }
    }

    fn wait_for(&mut self, event: &str) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.events.iter().all(|e| e["method"] != event) {
            let message = self.receive(until).with_context(|| format!("{event} does not come"))?;
            self.events.push(message);
        }
        Ok(())
    }

    fn settle(&mut self) {
        let until = Instant::now() + SETTLE;
        while let Ok(message) = self.receive(until) {
            self.events.push(message);
        }
    }

    fn receive(&mut self, until: Instant) -> Result<Value, RecvTimeoutError> {
        self.from.recv_timeout(until.saturating_duration_since(Instant::now()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have exited already; its folder is removed afterwards.
        let _ = self.ask("Browser.close", &json!({}));
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Images arrive as base64.
fn decode(data: &Value) -> anyhow::Result<Vec<u8>> {
    let text = data.as_str().context("the browser sent no data")?;
    STANDARD.decode(text).context("the browser sent no base64")
}
