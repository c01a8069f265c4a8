//! From one connection's bytes to events: deliveries as they pass, and an answer for each request when its response is over.

use trace::MonoNs;
use trace::engine::Mode;
use trace::event::{Answer, AnswerEnd, Delivery, Event, Lost, LostCause, What};

use super::event::{Form, Said};
use super::stream::{Item, Stream};
use super::{Limits, Unreadable};

/// What is known of the server behind all connections of it, and what has been seen on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// What the tokenizer hands to its waiters, where that is known beforehand.
    pub told: Option<Mode>,
    /// The same, as the last response that could tell showed it.
    shown: Option<Mode>,
    /// Deliveries told.
    pub deliveries: u64,
    /// Answers whose tokens were counted.
    pub counted: u64,
    /// Answers of text alone: what they carried cannot be counted.
    pub text_only: u64,
    /// Connections and bodies that cannot be read, by reason; each reason is kept once.
    pub unreadable: Vec<(Unreadable, u64)>,
}

/// How a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The client was first.
    pub by_client: bool,
    /// Bytes accepted and not acknowledged.
    pub unacknowledged: Option<u64>,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Reader {
    limits: Limits,
    stream: Stream,
    open: Open,
}

/// The response under way.
#[derive(Clone, Debug, Default)]
struct Open {
    parts: Vec<Part>,
    /// How many of `parts` are of this response; the others keep their memory for the next.
    used: usize,
    begun: bool,
    /// All of it was observed so far.
    whole: bool,
    held_up: u32,
}

#[derive(Clone, Debug)]
struct Part {
    rid: String,
    tokens: u32,
    counted: bool,
    claimed: Option<u32>,
}

impl Reader {
    /// A connection, from wherever it is first seen on.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            stream: Stream::new(limits),
            open: Open::default(),
        }
    }

    /// Whether nothing of it can or will be read.
    pub fn is_unreadable(&self) -> bool {
        self.stream.is_unreadable()
    }

    /// The socket took less than it was given.
    pub fn held_up(&mut self) {
        self.open.held_up = self.open.held_up.saturating_add(1);
    }

    /// Bytes passed and were not observed: what they delivered is unknown.
    pub fn missed(&mut self, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        if !self.stream.is_unreadable() {
            self.stream.missed();
            self.open.whole = false;
            lost(at, LostCause::Unframed, sink);
        }
    }

    /// Takes bytes that the kernel has accepted; `begins` says that a write began with them.
    pub fn feed(
        &mut self,
        at: MonoNs,
        bytes: &[u8],
        begins: bool,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (open, limits) = (&mut self.open, &self.limits);
        self.stream
            .feed(bytes, begins, &mut |item| open.enter(at, &item, limits, server, sink));
    }

    /// The connection is closed.
    pub fn closed(&mut self, at: MonoNs, closing: Closing, server: &mut Server, sink: &mut dyn FnMut(&Event<'_>)) {
        let (open, limits) = (&mut self.open, &self.limits);
        if !closing.by_client {
            self.stream
                .closed(&mut |item| open.enter(at, &item, limits, server, sink));
        }
        let end = if closing.by_client {
            AnswerEnd::ClientLeft
        } else {
            AnswerEnd::ServerLeft
        };
        self.open.end(at, end, closing.unacknowledged, server, sink);
    }
}

impl Open {
    fn enter(
        &mut self,
        at: MonoNs,
        item: &Item<'_>,
        limits: &Limits,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        match item {
            Item::Began => {
                let held_up = if self.begun { 0 } else { self.held_up };
                (self.used, self.begun, self.whole, self.held_up) = (0, true, true, held_up);
            }
            Item::Said(said) => {
                self.begun = true;
                if let Some(delivery) = server.delivery(said) {
                    sink(&Event {
                        at,
                        what: What::Delivered(delivery),
                    });
                }
                self.add(said, limits);
            }
            // What it delivered is unknown, or what passed before it.
            Item::NotRead | Item::Resumed => {
                self.whole = false;
                lost(at, LostCause::Unframed, sink);
            }
            Item::Ended => self.end(at, AnswerEnd::Whole, None, server, sink),
            Item::Unreadable(why) => {
                self.whole = false;
                match server.unreadable.iter_mut().find(|(known, _)| known == why) {
                    Some((_, times)) => *times += 1,
                    None => server.unreadable.push((*why, 1)),
                }
            }
        }
    }

    fn add(&mut self, said: &Said<'_>, limits: &Limits) {
        let known = self.parts[..self.used].iter().position(|part| part.rid == said.rid);
        let place = match known {
            Some(place) => place,
            None if self.used == limits.requests => return,
            None => {
                let fresh = Part {
                    rid: String::new(),
                    tokens: 0,
                    counted: true,
                    claimed: None,
                };
                if self.used == self.parts.len() {
                    self.parts.push(fresh);
                }
                let part = &mut self.parts[self.used];
                part.rid.clear();
                part.rid.push_str(&said.rid);
                (part.tokens, part.counted, part.claimed) = (0, true, None);
                self.used += 1;
                self.used - 1
            }
        };
        let part = &mut self.parts[place];
        let new = said.tokens.unwrap_or(0);
        part.counted &= said.tokens.is_some();
        // As many as are claimed are all so far; that a response of new ids begins with all of them changes nothing.
        part.tokens = if said.completion_tokens == said.tokens {
            new
        } else {
            part.tokens.saturating_add(new)
        };
        part.claimed = said.completion_tokens.or(part.claimed);
    }

    fn end(
        &mut self,
        at: MonoNs,
        end: AnswerEnd,
        unacknowledged: Option<u64>,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        for part in &self.parts[..self.used] {
            let answer = Answer {
                rid: &part.rid,
                tokens: (part.counted && self.whole).then_some(part.tokens),
                completion_tokens: part.claimed,
                end,
                held_up: self.held_up,
                unacknowledged,
            };
            *(if part.counted {
                &mut server.counted
            } else {
                &mut server.text_only
            }) += 1;
            sink(&Event {
                at,
                what: What::Answered(answer),
            });
        }
        (self.used, self.begun, self.whole, self.held_up) = (0, false, false, 0);
    }
}

impl Server {
    /// A server of which it is known beforehand what its tokenizer hands out.
    pub fn new(told: Option<Mode>) -> Self {
        Self {
            told,
            ..Self::default()
        }
    }

    /// What an event delivers; `None` where it names no tokens, or no request that the wire knows.
    fn delivery<'a>(&mut self, said: &'a Said<'_>) -> Option<Delivery<'a>> {
        if said.form != Form::Generate {
            return None;
        }
        let claimed = said.completion_tokens;
        // Up to 0.4.10 an event has ids or the whole text so far, which cannot lack what was made before.
        let (tokens, whole_text) = match said.tokens {
            Some(tokens) => (tokens, false),
            None => (claimed?, true),
        };
        let shown = match claimed {
            _ if whole_text => Some(Mode::Cumulative),
            // Fewer ids than there are tokens: new ones. All of them: either everything so far, or a first event.
            Some(count) if tokens < count => Some(Mode::Incremental),
            _ => None,
        };
        // An engine that is known to give all ids so far loses none of them by giving too few once.
        let mode = if self.told == Some(Mode::Cumulative) {
            self.told
        } else {
            shown.or(self.told).or(self.shown)
        };
        self.shown = shown.or(self.shown);
        self.deliveries += 1;
        Some(Delivery {
            rid: &said.rid,
            tokens,
            mode: mode.unwrap_or(Mode::Cumulative),
            completion_tokens: claimed,
            finished: said.finished,
        })
    }
}

fn lost(at: MonoNs, cause: LostCause, sink: &mut dyn FnMut(&Event<'_>)) {
    sink(&Event {
        at,
        what: What::Lost(Lost {
            hop: None,
            count: 1,
            cause,
        }),
    });
}
