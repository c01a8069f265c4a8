//! Test fixtures: a published run and a watcher of it.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use feed::{
    Body, Image, ImageError, Key, Past, PublishOptions, Published, Publisher, WatchEvent, WatchOptions, Watcher,
};
use trace::event::{Capabilities, Chunk, Event, Frame, Hop, Merged, What};
use trace::record::{BlockReader, Header, Record};
use trace::report::ReportInput;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

pub(crate) const MS: u64 = 1_000_000;

/// A published run with frames of 64 chunks.
pub(crate) struct Source {
    pub(crate) publisher: Publisher,
    pub(crate) analysis: Analysis,
    pub(crate) now: u64,
    pub(crate) seq: u64,
}

struct NoPast;

impl Past for NoPast {
    fn remember(&mut self, _: &Analysis) {}

    fn image(&self) -> Result<Image, ImageError> {
        Image::of(&7)
    }
}

pub(crate) fn options(key: Option<Key>) -> PublishOptions {
    PublishOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        key,
        pod: "pod-7".into(),
        watchers: 3,
        queue_bytes: 64 << 10,
        patience: Duration::from_millis(500),
        stall: Duration::from_mins(1),
    }
}

impl Source {
    pub(crate) fn new(options: PublishOptions) -> Self {
        let header = Header::of("model", Config::default());
        let mut source = Self {
            publisher: Publisher::start(options, header, Box::new(NoPast)).expect("a port"),
            analysis: Analysis::new(Config::default()),
            now: 1_000 * MS,
            seq: 0,
        };
        let (id, ends, capabilities) = (HopId(0), "scheduler->tokenizer".into(), Capabilities::SENT);
        source.emit(What::Hop(Hop { id, ends, endpoint: "", worker: None, origin: true, last: true, capabilities }));
        source
    }

    pub(crate) fn emit(&mut self, what: What<'_>) {
        let event = Event::new(MonoNs(self.now), what);
        self.analysis.apply(&event);
        self.publisher.event(&event);
    }

    /// Advances the run by a tenth of a second, with `frames` frames.
    pub(crate) fn step(&mut self, frames: u64) {
        for _ in 0..frames {
            let rids: Vec<String> = (0..64).map(|n| format!("{n:x}{:030x}", self.seq / 100)).collect();
            let (completion_tokens, prompt_tokens) = (Some((self.seq % 100 + 1) as u32), Some(10));
            let chunk = |rid| Chunk { listed: Some(1), completion_tokens, prompt_tokens, ..Chunk::new(rid) };
            let chunks: Vec<Chunk<'_>> = rids.iter().map(|rid| chunk(rid)).collect();
            let id = FrameId::new(HopId(0), 0, self.seq);
            self.seq += 1;
            self.now += MS;
            self.emit(What::Sent(Frame::token_ids(id, 4_000 + self.seq * 7 % 1_000, &chunks)));
        }
        self.now += 100 * MS;
        let now = MonoNs(self.now);
        self.analysis.tick(now);
        let analysis = &self.analysis;
        self.publisher.tick(now, analysis, &|| ReportInput::of("model"));
    }

    /// Adds 64 KiB that hardly compress, so that queues fill.
    pub(crate) fn send_incompressible(&mut self) {
        let mut random = self.now | 1;
        let mut random_char = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b' ' + (random >> 40) as u8 % 90)
        };
        let rid: String = (0..65_536).map(|_| random_char()).collect();
        self.emit(What::Merged(Merged { rid: &rid, chunks: 20, by: "" }));
    }

    pub(crate) fn watch(&self, key: Option<Key>) -> Watched {
        let options = WatchOptions { address: self.publisher.status().address.to_string(), key, max_message: 64 << 20 };
        Watched {
            watcher: Watcher::start(vec![options]).expect("a thread").remove(0),
            analysis: None,
            reader: BlockReader::default(),
            starts: 0,
            records: 0,
            ended: false,
            down: Vec::new(),
        }
    }

    /// A watcher that has received its first state.
    pub(crate) fn joined(&mut self, key: Option<Key>) -> Watched {
        let mut watched = self.watch(key);
        watched.wait_until("the first state", Some(self), |w| w.analysis.is_some());
        watched
    }

    /// Ends the run. Checks that the watchers receive its end and have the same state.
    pub(crate) fn finish(self, watchers: &mut [&mut Watched]) -> Published {
        let (publisher, analysis) = (self.publisher, self.analysis);
        let input = ReportInput { cpu_ns: Some(7), ..ReportInput::of("model") };
        let expected = report(&analysis);
        let finishing = thread::spawn(move || publisher.finish(&analysis, &input));
        for watched in watchers {
            watched.wait_until("the end", None, |w| w.ended);
            assert_eq!(watched.analysis.as_ref().map(report).as_ref(), Some(&expected));
        }
        finishing.join().expect("the end")
    }
}

fn report(of: &Analysis) -> String {
    of.report(&ReportInput::of("model")).to_json()
}

pub(crate) struct Watched {
    pub(crate) watcher: Watcher,
    pub(crate) analysis: Option<Analysis>,
    pub(crate) reader: BlockReader,
    pub(crate) starts: u64,
    /// Records received.
    pub(crate) records: u64,
    pub(crate) ended: bool,
    pub(crate) down: Vec<String>,
}

impl Watched {
    pub(crate) fn receive(&mut self) {
        while let Some(event) = self.watcher.poll() {
            match event {
                WatchEvent::Up => {}
                WatchEvent::Down(why) => self.down.push(why),
                WatchEvent::Message(message) => match message.body {
                    Body::Start(start, analysis) => {
                        self.starts += 1;
                        self.reader.go_on(start.record);
                        self.analysis = Some(*analysis.expect("an image of this version"));
                    }
                    Body::Block(block) => {
                        let analysis = self.analysis.as_mut().expect("a start precedes blocks");
                        let records = &mut self.records;
                        self.reader
                            .read(&block, &mut |record| {
                                *records += 1;
                                match record {
                                    Record::Event(event) => analysis.apply(&event),
                                    Record::Tick(now) => analysis.tick(now),
                                    _ => {}
                                }
                            })
                            .expect("a complete block");
                    }
                    Body::About(_) => {}
                    Body::End(closing) => {
                        assert_eq!(closing.cpu_ns, Some(7));
                        self.ended = true;
                    }
                },
            }
        }
    }

    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        mut source: Option<&mut Source>,
        condition: impl Fn(&Self) -> bool,
    ) {
        let end = Instant::now() + Duration::from_secs(20);
        while !condition(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.down);
            if let Some(source) = &mut source {
                source.step(3);
            }
            thread::sleep(Duration::from_millis(2));
            self.receive();
        }
    }
}
