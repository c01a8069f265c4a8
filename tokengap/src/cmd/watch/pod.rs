//! One watched run: its connection, its analysis, and its missed records.

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use feed::{Body, Head, Image, ImageError, Message, Start, WatchEvent, Watcher};
use session::units::{count, duration};
use session::{About, Flow, Session, Source};
use trace::ledger::Limits;
use trace::record::{Anchor, BlockReader, Header, Record, RecordOptions};
use trace::report::ReportInput;
use trace::{Analysis, words};
use tui::Screen;
use tui::pods::{Brief, Link, PodLine};

use super::{Args, Watched};
use crate::app;

/// Interval of connection checks and updates of the run list.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of messages per source and turn, so that other sources and keys get their turn.
const MESSAGES_A_TURN: usize = 8;
/// Time without a message until a source counts as silent. Sources send ten messages a second.
const SILENT: Duration = Duration::from_secs(3);

/// A run observed by another process.
pub(super) struct Pod {
    watcher: Watcher,
    name: String,
    kind: String,
    closing: ReportInput,
    /// Both clocks of the source at its last message.
    anchor: Option<Anchor>,
    /// Problems of the connection, and missed records.
    own: Vec<String>,
    reader: BlockReader,
    instance: String,
    link: Link,
    since: Instant,
    last_message: Instant,
    next_update: Instant,
    /// Reason for a missing connection.
    why: String,
    /// Reason why earlier state was not loaded, or why the run cannot be followed any further.
    incomplete_reason: Option<String>,
    broken: bool,
    stopped: bool,
    gaps: u64,
    limits: Limits,
    record: Option<PathBuf>,
    options: RecordOptions,
    /// The screen, and the run's index in its list.
    screen: Option<(Rc<RefCell<Screen>>, usize)>,
}

impl About for Pod {
    fn kind(&self) -> &str {
        &self.kind
    }

    fn degraded(&self) -> Vec<String> {
        let from_source = self.closing.degraded.iter().map(words::of_json);
        self.own.iter().cloned().chain(from_source).collect()
    }

    fn closing(&self) -> Option<&ReportInput> {
        Some(&self.closing)
    }

    fn wall(&self) -> Option<Anchor> {
        self.closing.wall.or(self.anchor)
    }
}

impl Source for Pod {
    fn poll(&mut self, session: &mut Session) -> Flow {
        if self.stopped {
            return Flow::Ended;
        }
        let mut flow = Flow::Idle;
        for _ in 0..MESSAGES_A_TURN {
            match self.watcher.poll() {
                None => break,
                Some(WatchEvent::Up) => {}
                Some(WatchEvent::Down(why)) => self.down(why, session),
                Some(WatchEvent::Message(message)) => self.process(*message, session),
            }
            flow = Flow::Busy;
        }
        let now = Instant::now();
        if now >= self.next_update {
            self.next_update = now + UPDATE_INTERVAL;
            self.update_link(now);
            if let Some((screen, place)) = &self.screen {
                screen.borrow_mut().set_pod(*place, self.line(now, session.analysis()));
            }
        }
        match (flow, self.link) {
            (Flow::Idle, Link::Ended) => Flow::Ended,
            (flow, _) => flow,
        }
    }

    fn stop(&mut self) {
        self.stopped = true;
    }
}

impl Pod {
    pub(super) fn new(
        watcher: Watcher,
        screen: Option<(Rc<RefCell<Screen>>, usize)>,
        args: &Args,
        several: bool,
    ) -> Self {
        let now = Instant::now();
        let record = args.record.clone();
        Self {
            name: watcher.address().to_owned(),
            kind: String::from("watch"),
            closing: ReportInput::default(),
            anchor: None,
            own: Vec::new(),
            reader: BlockReader::default(),
            instance: String::new(),
            link: Link::default(),
            since: now,
            last_message: now,
            next_update: now,
            why: String::new(),
            incomplete_reason: None,
            broken: false,
            stopped: false,
            gaps: 0,
            limits: args.limits.limits(),
            record: if several { record.map(|path| recording_path(&path, watcher.address())) } else { record },
            options: RecordOptions {
                max_bytes: args.record_max_size,
                force: args.force,
                // The source's clocks differ from those of this process.
                anchor_every_ns: None,
                ..RecordOptions::default()
            },
            watcher,
            screen,
        }
    }

    fn down(&mut self, why: String, session: &mut Session) {
        self.why = why;
        let link = match self.link {
            Link::Live | Link::Silent => Link::Lost,
            link => link,
        };
        if self.set(link) {
            session.notify(format!("! {} was lost: {}", self.name, self.why));
        }
    }

    fn set(&mut self, link: Link) -> bool {
        let changed = mem::replace(&mut self.link, link) != link;
        if changed {
            self.since = Instant::now();
        }
        changed
    }

    fn process(&mut self, Message { head, body }: Message, session: &mut Session) {
        self.last_message = Instant::now();
        self.anchor = Some(head.anchor());
        match body {
            Body::Start(start, analysis) => self.begin(&head, *start, analysis, session),
            // Records of a run with an unknown start cannot be interpreted.
            _ if head.instance != self.instance => return,
            Body::Block(block) => self.block(&block, session),
            Body::About(closing) => self.closing = *closing,
            Body::End(closing) => {
                self.closing = *closing;
                self.set(Link::Ended);
                session.notify(format!("{} has ended", self.name));
                return;
            }
        }
        self.why.clear();
        self.set(Link::Live);
    }

    /// Loads the state of the source: on first contact, after a gap, and after a restart of the source.
    fn begin(&mut self, head: &Head, start: Start, analysis: Result<Box<Analysis>, ImageError>, session: &mut Session) {
        let known = head.instance == self.instance;
        if !known {
            self.start_run(head, &start, session);
        }
        let own_version = env!("CARGO_PKG_VERSION");
        let analysis = analysis.map_err(|e| e.to_string()).and_then(|analysis| {
            let same = start.tokengap == own_version;
            let other = || format!("the source is tokengap {} and this is {own_version}", start.tokengap);
            same.then_some(analysis).ok_or_else(other)
        });
        self.closing = start.closing;
        match analysis {
            Ok(mut analysis) => {
                if analysis.keep_within(self.limits) {
                    self.incomplete_reason = Some(
                        "its limits are higher than --max-live and --max-finished here: older requests are evicted"
                            .into(),
                    );
                }
                let missed = self.reader.go_on(start.record);
                self.missed(missed, session);
                session.take_over(*analysis, missed);
                let past = start.history.filter(|_| !known);
                if let (Some((screen, place)), Some(past)) =
                    (&self.screen, past.and_then(|past| Image::unpack(&past).ok()))
                {
                    screen.borrow_mut().take_over(*place, past);
                }
            }
            // The next block contains the current position, which gives the number of missing records.
            Err(why) => {
                self.incomplete_reason = Some(format!("its earlier history is unknown: {why}"));
            }
        }
    }

    fn start_run(&mut self, head: &Head, start: &Start, session: &mut Session) {
        if !self.instance.is_empty() {
            for message in session.close(&ReportInput::of(&self.kind)) {
                session.notify(message);
            }
            session.notify(format!("{} was restarted: this is the new run", head.pod));
            self.record = None;
        }
        let mut config = start.config;
        config.limits = config.limits.at_most(self.limits);
        session.restart(config);
        (self.reader, self.incomplete_reason, self.gaps) = (BlockReader::default(), None, 0);
        self.instance.clone_from(&head.instance);
        self.name = head.pod.chars().filter(|c| !c.is_control()).take(100).collect();
        self.kind = start.source.chars().filter(|c| !c.is_control()).take(40).collect();
        let header = Header {
            tokengap: start.tokengap.clone(),
            source: self.kind.clone(),
            config,
            anchor: head.anchor(),
            payload: start.payload,
            part: 0,
        };
        session.sink().describe(header, self.options);
        if let Some(path) = self.record.take()
            && let Err(error) = session.sink().record(&path)
        {
            session.give_up(format!("recording: {error}"));
            session.notify(format!("! recording: {error}"));
        }
    }

    fn block(&mut self, block: &[u8], session: &mut Session) {
        if self.broken {
            return;
        }
        let mut reader = mem::take(&mut self.reader);
        let lost = reader.lost();
        let read = catch_unwind(AssertUnwindSafe(|| {
            reader.read(block, &mut |record| match record {
                Record::Event(event) => session.event(&event),
                Record::Tick(now) => session.tick(now, self),
                Record::Anchor(_) | Record::Closing(_) => {}
            })
        }));
        self.reader = reader;
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("{}: {error}", self.name),
            Err(_) => {
                self.broken = true;
                self.incomplete_reason = Some(
                    "its events could not be analysed, so it is no longer followed. Please report this bug.".into(),
                );
            }
        }
        self.missed(self.reader.lost() - lost, session);
    }

    fn missed(&mut self, records: u64, session: &mut Session) {
        if records > 0 {
            self.gaps += 1;
            session.notify(format!("! {} records of {} were missed", count(records), self.name));
        }
    }

    /// Updates the state of the connection.
    fn update_link(&mut self, now: Instant) {
        if self.link == Link::Live && now - self.last_message >= SILENT {
            self.set(Link::Silent);
        }
        let since = duration((now - self.since).as_nanos() as u64);
        let mut own = Vec::new();
        match self.link {
            Link::Live | Link::Ended => {}
            Link::Away if self.why.is_empty() => {}
            Link::Away => own.push(format!("{} has been unreachable for {since}: {}", self.name, self.why)),
            Link::Silent => own.push(format!("{} has been silent for {since}: its values are that old", self.name)),
            Link::Lost => own.push(format!("{} was lost {since} ago: {}", self.name, self.why)),
        }
        if self.reader.lost() > 0 {
            own.push(format!(
                "feed: {} records of {} were missed, in {} gaps: lost between the run and this watcher, not in the engine",
                count(self.reader.lost()),
                self.name,
                self.gaps
            ));
        }
        own.extend(self.incomplete_reason.iter().map(|why| format!("feed: {}: {why}", self.name)));
        self.own = own;
    }

    /// Summary line of the run.
    fn line(&self, now: Instant, analysis: &Analysis) -> PodLine {
        PodLine {
            name: self.name.clone(),
            link: self.link,
            since_ns: (now - self.since).as_nanos() as u64,
            why: self.own.first().cloned().unwrap_or_default(),
            missed: self.reader.lost(),
            brief: Brief::of(analysis),
        }
    }

    /// Drops the screen, which the last of its runs closes.
    pub(super) fn leave_screen(&mut self) {
        self.screen = None;
    }

    pub(super) fn finish(mut self, session: Session) -> Watched {
        self.update_link(Instant::now());
        Watched {
            endpoint: self.watcher.address().to_owned(),
            state: self.link.word().to_lowercase(),
            records_missed: self.reader.lost(),
            gaps: self.gaps,
            report: session.finish(&self, &app::print_message),
            pod: self.name,
        }
    }
}

/// Derives a file name per source from `run.tgap`: `run-ADDRESS.tgap`.
fn recording_path(path: &Path, address: &str) -> PathBuf {
    let plain: String = address.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
    path.with_file_name(format!("{stem}-{plain}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_watched_source_records_to_its_own_file() {
        let path = recording_path(Path::new("/var/tmp/run.tgap"), "pod-7:5600");
        assert_eq!(path, Path::new("/var/tmp/run-pod-7-5600.tgap"));
        assert_eq!(recording_path(Path::new("run"), "[::1]:1"), Path::new("run----1--1"));
    }
}
