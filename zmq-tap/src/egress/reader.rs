//! From one connection's bytes to events: deliveries as they pass, and an answer for each request when its response is over.

use trace::MonoNs;
use trace::engine::Mode;
use trace::event::{Answer, AnswerEnd, Delivery, Event, Lost, LostCause, Response, What};

use super::content::{Content, Heard};
use super::event::{Form, Said};
use super::names::{Named, Streams, Told};
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
    /// Response streams whose request id was told, and those whose was not.
    pub named: u64,
    /// As above.
    pub nameless: u64,
    streams: Streams,
    /// `SGLang`'s request ids by the frontends' ids, where the worker's log told them.
    told_rids: Told,
    /// Which request a stream answers, by what it carries.
    pub content: Content,
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
    /// A stream's request, where a request plane has told it.
    name: Option<Named>,
    /// It is a stream of Dynamo's.
    plane: bool,
    /// Its end was told before the connection's.
    told: Option<AnswerEnd>,
}

#[derive(Clone, Debug)]
struct Part {
    rid: String,
    tokens: u32,
    counted: bool,
    claimed: Option<u32>,
    /// Its tokens, where only they can tell whose it is.
    heard: Heard,
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

    /// The client has said that it wants no more: what is made from now on is not written, and not lost.
    pub fn stopped(&mut self) {
        self.open.told.get_or_insert(AnswerEnd::ClientLeft);
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
        let end = self.open.told.unwrap_or(if closing.by_client {
            AnswerEnd::ClientLeft
        } else {
            AnswerEnd::ServerLeft
        });
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
            Item::Subject(subject) => {
                (self.used, self.begun, self.whole, self.plane) = (0, true, true, true);
                self.name = server.streams.take(subject);
            }
            Item::Said(said) => {
                self.begun = true;
                let mut name = self.name.take();
                // What was said before under another id stays under that.
                if let Some(name) = name.as_mut().filter(|name| self.used == 0 && !name.is_rid())
                    && let Some(rid) = server.told_rids.take(name.id())
                {
                    name.becomes(rid);
                }
                let renamed = name.as_ref().and_then(|name| name.rename(said));
                let said = renamed.as_ref().unwrap_or(said);
                let joined = name.as_ref().is_some_and(Named::is_rid);
                let delivery = if said.form == Form::OpenAi {
                    let begins = !self.parts[..self.used].iter().any(|part| part.rid == said.rid);
                    begins.then(|| text_only(&said.rid))
                } else {
                    server.delivery(said, self.claimed(&said.rid), joined)
                };
                if let Some(delivery) = delivery {
                    sink(&Event {
                        at,
                        what: What::Delivered(delivery),
                    });
                }
                self.add(said, limits);
                if said.form == Form::ResponsePlane && !joined {
                    let part = self.parts[..self.used].iter_mut().find(|part| part.rid == said.rid);
                    if let Some(part) = part {
                        server.content.heard(&mut part.heard, said.ids);
                    }
                }
                drop(renamed);
                self.name = name;
            }
            Item::Failed => self.told = Some(AnswerEnd::ServerLeft),
            // What it delivered is unknown, or what passed before it.
            Item::NotRead | Item::Resumed => {
                self.whole = false;
                lost(at, LostCause::Unframed, sink);
            }
            Item::Ended => {
                // A generator that failed may still be said to be done.
                let failed = self.told == Some(AnswerEnd::ServerLeft);
                let end = if failed {
                    AnswerEnd::ServerLeft
                } else {
                    AnswerEnd::Whole
                };
                self.end(at, end, None, server, sink);
            }
            Item::Unreadable(why) => {
                self.whole = false;
                server.unreadable(*why);
            }
        }
    }

    /// What the last event of this request on this response claimed.
    fn claimed(&self, rid: &str) -> Option<u32> {
        let part = self.parts[..self.used].iter().find(|part| part.rid == rid)?;
        part.claimed
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
                    heard: Heard::default(),
                };
                if self.used == self.parts.len() {
                    self.parts.push(fresh);
                }
                let part = &mut self.parts[self.used];
                part.rid.clear();
                part.rid.push_str(&said.rid);
                (part.tokens, part.counted, part.claimed) = (0, true, None);
                part.heard.clear();
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
        let named = self.name.as_ref().is_some_and(Named::is_rid);
        for part in &self.parts[..self.used] {
            // A stream's own name is not forgotten with its request's: both are told side by side.
            let found = match (part.claimed, self.plane && !named && self.whole) {
                (Some(claimed), true) => server.content.join(&part.heard, claimed),
                _ => None,
            };
            if self.plane {
                *(if named || found.is_some() {
                    &mut server.named
                } else {
                    &mut server.nameless
                }) += 1;
            }
            if let Some(rid) = &found {
                server.content.remember(&part.rid, rid);
            } else if named {
                server.content.settled(&part.rid);
            }
            let answer = Answer {
                rid: found.as_deref().unwrap_or(&part.rid),
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
        (self.told, self.name, self.plane) = (None, None, false);
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

    /// Something that passes cannot be read.
    pub fn unreadable(&mut self, why: Unreadable) {
        match self.unreadable.iter_mut().find(|(known, _)| *known == why) {
            Some((_, times)) => *times += 1,
            None => self.unreadable.push((why, 1)),
        }
    }

    /// A request plane has told of a stream that is to begin: the request's id there, and `SGLang`'s own where it is known.
    pub fn asked(&mut self, subject: &str, context: &str, rid: Option<&str>) {
        self.streams.keep(subject, context, rid);
    }

    /// The worker's log has told how `SGLang` calls the request `context`; before its first token is made.
    pub fn submitted(&mut self, context: &str, rid: &str) {
        self.told_rids.keep(context, rid);
    }

    /// What an event delivers, `before` being what the response's last one claimed; `None` where it names no tokens, or no
    /// request that the wire knows.
    fn delivery<'a>(&mut self, said: &'a Said<'_>, before: Option<u32>, joined: bool) -> Option<Delivery<'a>> {
        if said.form == Form::ResponsePlane && joined {
            self.deliveries += 1;
            return Some(Delivery {
                rid: &said.rid,
                tokens: said.tokens?,
                mode: Mode::Incremental,
                completion_tokens: said.completion_tokens,
                finished: said.finished,
                response: Response::Streamed,
            });
        }
        if said.form != Form::Generate {
            return None;
        }
        let claimed = said.completion_tokens;
        // Up to 0.4.10 an event has ids or the whole text so far, which cannot lack what was made before.
        let (tokens, shown) = match said.tokens {
            Some(tokens) => (tokens, claimed.and_then(|count| shape(tokens, count, before))),
            None => (claimed?, Some(Mode::Cumulative)),
        };
        // An engine that is known to give all ids so far loses none of them by giving too few once.
        let mode = if self.told == Some(Mode::Cumulative) {
            self.told
        } else {
            shown.or(self.told).or(self.shown)
        };
        if claimed != before {
            self.shown = shown.or(self.shown);
        }
        self.deliveries += 1;
        let mode = mode.unwrap_or(Mode::Cumulative);
        // From 0.5.11 on an event's list of all ids is the engine's own, which may grow before it is written.
        let tokens = match (mode, claimed) {
            (Mode::Cumulative, Some(count)) => tokens.min(count),
            _ => tokens,
        };
        Some(Delivery {
            rid: &said.rid,
            tokens,
            mode,
            completion_tokens: claimed,
            finished: said.finished,
            response: if said.whole {
                Response::Whole
            } else {
                Response::Streamed
            },
        })
    }
}

/// The first event of a response with text only.
fn text_only(rid: &str) -> Delivery<'_> {
    Delivery {
        rid,
        tokens: 0,
        mode: Mode::Cumulative,
        completion_tokens: None,
        finished: false,
        response: Response::Text,
    }
}

/// What an event of `tokens` ids that claims `count` shows of its engine's mode, `before` being the last claim; `None` where it
/// is the same in both: nothing new, or everything at once.
fn shape(tokens: u32, count: u32, before: Option<u32>) -> Option<Mode> {
    match before {
        _ if tokens == 0 => None,
        // More than is new, and most of what there is.
        Some(before) if tokens > count.saturating_sub(before) && tokens > count / 2 => Some(Mode::Cumulative),
        _ if tokens < count => Some(Mode::Incremental),
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_an_event_tells_the_mode_where_it_can() {
        let (new, all) = (Some(Mode::Incremental), Some(Mode::Cumulative));
        // First events: all of it at once, or the end of what queued up.
        assert_eq!(
            (shape(1, 1, None), shape(3, 3, None), shape(1, 4, None)),
            (None, None, new)
        );
        // Later ones: one more, several merged, the last of several.
        assert_eq!(
            (shape(1, 2, Some(1)), shape(3, 9, Some(6)), shape(1, 9, Some(6))),
            (new, new, new)
        );
        // All so far; all but what came before the request was known; a list that grew meanwhile.
        assert_eq!(
            (shape(9, 9, Some(6)), shape(6, 9, Some(8)), shape(12, 9, Some(8))),
            (all, all, all)
        );
        // The repeated id of a made-up last chunk, and an empty one.
        assert_eq!((shape(1, 9, Some(9)), shape(0, 9, Some(9))), (new, None));
    }
}
