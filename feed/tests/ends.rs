//! Both ends over real sockets: a run published and watched, slow watchers, and peers that are no watchers at all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use feed::{Body, Image, Key, News, PublishOptions, Published, Publisher, Telling, WatchOptions, Watcher};
use trace::event::{Chunk, Event, Frame, Hop, IdColumn, Kind, Merged, Sees, What};
use trace::record::{BlockReader, Header, Record};
use trace::report::ReportInput;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

const MS: u64 = 1_000_000;

/// A run of frames of 64 chunks, published.
struct Source {
    publisher: Publisher,
    analysis: Analysis,
    now: u64,
    seq: u64,
}

fn options(key: Option<Key>) -> PublishOptions {
    PublishOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        key,
        pod: "pod-7".into(),
        watchers: 3,
        queue_bytes: 64 << 10,
        patience: Duration::from_millis(500),
    }
}

impl Source {
    fn new(options: PublishOptions) -> Self {
        let header = Header::of("model", Config::default());
        let mut source = Self {
            publisher: Publisher::start(options, header).expect("a port"),
            analysis: Analysis::new(Config::default()),
            now: 1_000 * MS,
            seq: 0,
        };
        let sees = Sees {
            sent: true,
            ..Sees::default()
        };
        source.say(What::Hop(Hop {
            id: HopId(0),
            name: "scheduler->tokenizer",
            endpoint: "ipc:///tmp/t",
            worker: None,
            origin: true,
            last: true,
            sees,
        }));
        source
    }

    fn say(&mut self, what: What<'_>) {
        let event = Event {
            at: MonoNs(self.now),
            what,
        };
        self.analysis.apply(&event);
        self.publisher.event(&event);
    }

    /// A tenth of a second of the run, with `frames` frames.
    fn step(&mut self, frames: u64) {
        for _ in 0..frames {
            let rids: Vec<String> = (0..64).map(|n| format!("{n:x}{:030x}", self.seq / 100)).collect();
            let completion = (self.seq % 100 + 1) as u32;
            let chunks: Vec<Chunk<'_>> = rids
                .iter()
                .map(|rid| Chunk {
                    rid,
                    listed: Some(1),
                    completion_tokens: Some(completion),
                    prompt_tokens: Some(10),
                    cached_tokens: None,
                    finish: None,
                    retractions: None,
                    worker: None,
                    ids: &[],
                })
                .collect();
            let id = FrameId {
                hop: HopId(0),
                lane: 0,
                seq: self.seq,
            };
            self.seq += 1;
            self.now += MS;
            self.say(What::Sent(Frame {
                id,
                bytes: 4_000 + self.seq * 7 % 1_000,
                kind: Kind::TokenIds,
                ids: IdColumn::Delta,
                chunks: &chunks,
            }));
        }
        self.now += 100 * MS;
        let now = MonoNs(self.now);
        self.analysis.tick(now);
        let analysis = &self.analysis;
        self.publisher.tick(
            now,
            &Telling {
                analysis,
                input: &|| ReportInput::of("model"),
                history: &|| Image::of(&7),
            },
        );
    }

    /// 64 KiB that cannot be packed much, so that queues fill.
    fn babble(&mut self) {
        let mut random = self.now | 1;
        let mut letter = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b' ' + (random >> 40) as u8 % 90)
        };
        let rid: String = (0..65_536).map(|_| letter()).collect();
        self.say(What::Merged(Merged {
            rid: &rid,
            chunks: 20,
            by: "",
        }));
    }

    fn watch(&self, key: Option<Key>) -> Watched {
        let options = WatchOptions {
            address: self.publisher.address().to_string(),
            key,
            max_message: 64 << 20,
        };
        Watched {
            watcher: Watcher::start(vec![options]).expect("a thread").remove(0),
            analysis: None,
            reader: BlockReader::default(),
            starts: 0,
            ended: false,
            down: Vec::new(),
        }
    }
}

fn report(of: &Analysis) -> String {
    of.report(&ReportInput::of("model")).to_json()
}

struct Watched {
    watcher: Watcher,
    analysis: Option<Analysis>,
    reader: BlockReader,
    starts: u64,
    ended: bool,
    down: Vec<String>,
}

impl Watched {
    fn take(&mut self) {
        while let Some(news) = self.watcher.poll() {
            match news {
                News::Up => {}
                News::Down(why) => self.down.push(why),
                News::Message(message) => match message.body {
                    Body::Start(start, analysis) => {
                        self.starts += 1;
                        self.reader.go_on(start.record);
                        self.analysis = Some(*analysis.expect("an image of this version"));
                    }
                    Body::Block(block) => {
                        let analysis = self.analysis.as_mut().expect("a start comes first");
                        self.reader
                            .read(&block, &mut |record| match record {
                                Record::Event(event) => analysis.apply(&event),
                                Record::Tick(now) => analysis.tick(now),
                                _ => {}
                            })
                            .expect("a whole block");
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

    fn until(&mut self, what: &str, mut source: Option<&mut Source>, is: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.down);
            if let Some(source) = &mut source {
                source.step(3);
            }
            thread::sleep(Duration::from_millis(2));
            self.take();
        }
    }
}

fn finish(publisher: Publisher, analysis: &Analysis) -> Published {
    let closing = || ReportInput {
        cpu_ns: Some(7),
        ..ReportInput::of("model")
    };
    publisher.finish(&Telling {
        analysis,
        input: &closing,
        history: &|| Image::of(&7),
    })
}

fn watched_to_the_end(key: Option<&Key>) {
    let mut source = Source::new(options(key.cloned()));
    (0..50).for_each(|_| source.step(20));
    let mut early = source.watch(key.cloned());
    early.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    for _ in 0..30 {
        source.step(20);
        thread::sleep(Duration::from_millis(5));
        early.take();
    }
    let mut late = source.watch(key.cloned());
    late.until("the state for who is late", Some(&mut source), |w| w.analysis.is_some());
    early.take();
    assert_eq!(source.publisher.status().watchers, 2);
    let (publisher, analysis) = (source.publisher, source.analysis);
    let at_the_source = report(&analysis);
    let ends = thread::spawn(move || finish(publisher, &analysis));
    for watched in [&mut early, &mut late] {
        watched.until("the end", None, |w| w.ended);
        assert_eq!((watched.starts, watched.reader.lost()), (1, 0));
        assert_eq!(watched.analysis.as_ref().map(report).as_ref(), Some(&at_the_source));
    }
    assert_eq!(ends.join().expect("the end").dropped, 0);
}

#[test]
fn whoever_comes_and_whenever_sees_what_the_source_sees() {
    watched_to_the_end(None);
}

#[test]
fn and_so_does_who_has_the_key() {
    watched_to_the_end(Some(&Key::new([9; 32])));
}

#[test]
fn who_has_another_key_or_none_learns_nothing_and_is_told_why() {
    let mut source = Source::new(options(Some(Key::new([9; 32]))));
    for (key, word) in [(Some(Key::new([8; 32])), "key"), (None, "--feed-key")] {
        let mut watched = source.watch(key);
        watched.until("the refusal", Some(&mut source), |w| !w.down.is_empty());
        assert!(
            watched.analysis.is_none() && watched.down[0].contains(word),
            "{:?}",
            watched.down
        );
    }
    let mut open = Source::new(options(None));
    let mut keyed = open.watch(Some(Key::new([9; 32])));
    keyed.until("the refusal", Some(&mut open), |w| !w.down.is_empty());
    assert!(keyed.analysis.is_none());
}

/// What a watcher that has stopped costs: nothing beyond its queue, and it goes on with the state when it comes back.
#[test]
fn a_watcher_that_stands_still_is_left_behind_and_catches_up() {
    let mut source = Source::new(options(None));
    let mut watched = source.watch(None);
    watched.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    let mut steps = 0;
    while source.publisher.status().dropped == 0 {
        source.babble();
        source.step(2);
        // The other thread has to come by.
        thread::sleep(Duration::from_millis(1));
        steps += 1;
        assert!(steps < 10_000, "{:?}", source.publisher.status());
    }
    (0..20).for_each(|_| source.step(2));
    watched.until("the next state", Some(&mut source), |w| w.starts >= 2);
    assert!(watched.reader.lost() > 0, "the hole is known");
    let (publisher, analysis) = (source.publisher, source.analysis);
    let at_the_source = report(&analysis);
    let ends = thread::spawn(move || finish(publisher, &analysis));
    watched.until("the end", None, |w| w.ended);
    assert_eq!(watched.analysis.as_ref().map(report), Some(at_the_source));
    assert!(ends.join().expect("the end").dropped > 0);
}

/// Without the end, a watcher that has no time of its own to stop at would wait for ever.
#[test]
fn a_watcher_that_is_behind_when_the_run_ends_has_the_last_state_and_the_end() {
    let mut source = Source::new(options(None));
    let mut watched = source.watch(None);
    watched.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    let mut steps = 0;
    while source.publisher.status().dropped == 0 {
        source.babble();
        source.step(2);
        thread::sleep(Duration::from_millis(1));
        steps += 1;
        assert!(steps < 10_000, "{:?}", source.publisher.status());
    }
    // Of these it can have nothing but by a state.
    (0..20).for_each(|_| source.step(2));
    assert_eq!(watched.starts, 1);
    let at_the_source = report(&source.analysis);
    let (publisher, analysis) = (source.publisher, source.analysis);
    let ends = thread::spawn(move || finish(publisher, &analysis));
    watched.until("the end", None, |w| w.ended);
    assert_eq!(watched.starts, 2);
    assert_eq!(watched.analysis.as_ref().map(report), Some(at_the_source));
    assert!(watched.reader.lost() > 0, "the hole is known");
    assert!(ends.join().expect("the end").dropped > 0);
}

#[test]
fn peers_that_are_no_watchers_are_left_out_and_take_no_room() {
    let mut source = Source::new(options(None));
    let address = source.publisher.address();
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4_096],
        &[0; 4_096],
        // A greeting, then a frame of 2^63 bytes.
        &[
            &[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0][..],
            b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            &[0; 32],
            &[2, 0x80, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat(),
        b"",
    ];
    for bytes in garbage {
        let mut peer = TcpStream::connect(address).expect("a connection");
        peer.write_all(bytes).ok();
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        let begun = Instant::now();
        let mut said = Vec::new();
        // Ends by itself: at once, or when the patience is over.
        peer.read_to_end(&mut said).ok();
        assert!(begun.elapsed() < Duration::from_secs(5), "{bytes:?}");
        assert!(said.len() < 200, "only a greeting is said");
    }
    let slow: Vec<TcpStream> = (0..3)
        .map(|_| TcpStream::connect(address).expect("a connection"))
        .collect();
    thread::sleep(Duration::from_millis(900));
    drop(slow);
    let mut watched = source.watch(None);
    watched.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    assert_eq!(source.publisher.status().watchers, 1);
}

#[test]
fn only_so_many_may_come() {
    let mut source = Source::new(options(None));
    let mut all: Vec<Watched> = (0..3).map(|_| source.watch(None)).collect();
    for watched in &mut all {
        watched.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    }
    let mut beyond = source.watch(None);
    beyond.until("the refusal", Some(&mut source), |w| !w.down.is_empty());
    assert!(
        beyond.analysis.is_none() && beyond.down[0].contains("--feed-watchers"),
        "{:?}",
        beyond.down
    );
    all.clear();
    beyond.until("room again", Some(&mut source), |w| w.analysis.is_some());
}
