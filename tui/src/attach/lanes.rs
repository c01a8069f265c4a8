//! From what libzmq was seen to do to events: which hop a socket's messages cross, and what they say.
//!
//! A hop here is one sending socket. Its name is known in two steps: the sender's role at its first readable message, the
//! receiver's from the connections, and for certain at the first one that is seen taken. Sockets that never carry a message of the engine's are left out.

use std::collections::HashMap;

use probe_user::matcher::Limits as MatcherLimits;
use probe_user::{Call, Matcher, Message, SocketId};
use trace::engine::Waiter;
use trace::event::{Event, Frame, Hop, Kind, Lost, LostCause, Sees, Taken, Undecoded, What};
use trace::{FrameId, HopId, MonoNs, ThreadId};
use zmq_tap::wire::{Decoder, Limits};

use super::hopids::HopIds;
use super::roles::{Part, Receiver, Roles};

/// Where events go.
pub(super) type Sink<'s> = &'s mut dyn FnMut(&Event<'_>);

/// All lanes of an attach.
pub(super) struct Lanes {
    matcher: Matcher,
    decoder: Decoder,
    roles: Roles,
    sight: Sight,
    /// By the matcher's lane number; `None` while nothing readable was sent on it.
    hops: Vec<Option<Known>>,
    ids: HopIds,
    /// Hops of sockets whose senders are not watched, by the taking socket.
    unseen_senders: HashMap<SocketId, (HopId, u64)>,
    /// What the messages' layout says of the release, told when discovery found none.
    wire: Option<Release>,
    pub(super) left_out: u64,
    /// Messages told as lost by their sockets' numbers, which the kernel side's counter has not told yet.
    ahead: u64,
}

/// What can be seen at the receiving end of a hop whose receiver is watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// When a message has been handled.
    pub(super) handled: bool,
    /// What a tokenizer writes for its clients.
    pub(super) delivered: bool,
}

/// A range of releases and what their waiters do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) schema: &'static str,
    pub(super) waiter: Option<Waiter>,
}

/// A lane that is a hop.
#[derive(Clone, Debug)]
struct Known {
    id: HopId,
    from: Part,
    sender: u32,
    to: Option<Receiver>,
    /// A take has shown who receives; until then `to` is what the connections say.
    met: bool,
    kind: Kind,
}

impl Lanes {
    pub(super) fn new(roles: Roles, sight: Sight) -> Self {
        Self {
            matcher: Matcher::new(MatcherLimits::default()),
            decoder: Decoder::new(Limits::default()),
            roles,
            sight,
            hops: Vec::new(),
            ids: HopIds::default(),
            unseen_senders: HashMap::new(),
            wire: None,
            left_out: 0,
            ahead: 0,
        }
    }

    /// Goes on with the hops of the engine's earlier lives.
    pub(super) fn succeed(&mut self, ids: HopIds) {
        self.ids = ids;
    }

    /// The hops met, for the engine's next life.
    pub(super) fn ids(&self) -> &HopIds {
        &self.ids
    }

    pub(super) fn keep_ids(&mut self) {
        self.decoder.keep_ids();
    }

    pub(super) fn roles_mut(&mut self) -> &mut Roles {
        &mut self.roles
    }

    /// The releases whose layout the last frame with chunks had.
    pub(super) fn release(&self) -> Option<Release> {
        self.wire
    }

    /// Frames taken that no watched socket was seen to send, and other things that could not be joined.
    pub(super) fn misses(&self) -> probe_user::matcher::Misses {
        self.matcher.misses()
    }

    /// A message entered a socket.
    pub(super) fn sent(&mut self, message: &Message<'_>, sink: Sink<'_>) {
        let before = self.matcher.misses().lost_sent;
        let name = self.matcher.sent(message);
        let unseen = self.matcher.misses().lost_sent - before;
        self.lost(name.lane, unseen, message.call.at, sink);
        let (at, from) = (message.call.at, self.roles.of(message.call.socket.pid));
        if from.sends_requests() {
            return;
        }
        let lane = name.lane as usize;
        if self.hops.len() <= lane {
            self.hops.resize(lane + 1, None);
        }
        let decoded = match whole(message) {
            Ok(bytes) => self.decoder.decode(bytes).map_err(|why| why.reason()),
            Err(why) => Err(why),
        };
        let batch = match decoded {
            Ok(batch) => batch,
            Err(reason) => {
                if let Some(known) = &self.hops[lane] {
                    let id = FrameId {
                        hop: known.id,
                        lane: self.ids.life(),
                        seq: name.seq,
                    };
                    sink(&Event {
                        at,
                        what: What::Undecoded(Undecoded {
                            id,
                            bytes: message.bytes,
                            reason,
                        }),
                    });
                }
                return;
            }
        };
        let kind = batch.kind();
        if !batch.is_empty() {
            self.wire = Some(Release {
                schema: batch.schema(),
                waiter: batch.waiter(),
            });
        }
        if self.hops[lane].is_none() {
            let sender = message.call.socket.pid;
            let (from, to) = (
                self.roles.sender(sender, kind),
                self.roles.presumed_receiver(sender, kind),
            );
            let Some(id) = self.ids.meet(&name_of(from, to)) else {
                self.left_out += 1;
                return;
            };
            let known = Known {
                id,
                from,
                sender,
                to,
                met: false,
                kind,
            };
            announce(&known, &self.roles, self.sight, at, sink);
            self.hops[lane] = Some(known);
        }
        if let Some(known) = &mut self.hops[lane] {
            if known.kind == Kind::Control && kind != Kind::Control {
                known.kind = kind;
                known.from = self.roles.sender(message.call.socket.pid, kind);
                if !known.met {
                    known.to = self.roles.presumed_receiver(message.call.socket.pid, kind);
                }
                announce(known, &self.roles, self.sight, at, sink);
            }
            let id = FrameId {
                hop: known.id,
                lane: self.ids.life(),
                seq: name.seq,
            };
            let frame = Frame {
                id,
                bytes: message.bytes,
                kind,
                ids: batch.ids(),
                chunks: batch.chunks(),
            };
            sink(&Event {
                at,
                what: What::Sent(frame),
            });
        }
    }

    /// A message left a socket.
    pub(super) fn taken(&mut self, message: &Message<'_>, sink: Sink<'_>) {
        let Call {
            at,
            socket,
            tid,
            wakeup,
            ..
        } = message.call;
        let by = Some(ThreadId { pid: socket.pid, tid });
        let before = self.matcher.misses().lost_taken;
        let found = self.matcher.taken(message);
        let unseen = self.matcher.misses().lost_taken - before;
        let Some(found) = found else {
            return self.taken_unsent(message, sink);
        };
        self.lost(found.frame.lane, unseen, at, sink);
        let Some(Some(known)) = self.hops.get_mut(found.frame.lane as usize) else {
            return;
        };
        if !std::mem::replace(&mut known.met, true) {
            let receiver = Some(Receiver {
                part: self.roles.receiver(socket.pid, known.kind),
                pid: Some(socket.pid),
            });
            if std::mem::replace(&mut known.to, receiver) != receiver {
                announce(known, &self.roles, self.sight, at, sink);
            }
        }
        let id = FrameId {
            hop: known.id,
            lane: self.ids.life(),
            seq: found.frame.seq,
        };
        sink(&Event {
            at,
            what: What::Taken(Taken {
                id,
                wakeup,
                by,
                frame: None,
            }),
        });
    }

    /// Messages of a lane that its numbers show to have escaped us: told before what comes after them, so that nothing is concluded
    /// from their absence.
    fn lost(&mut self, lane: u32, count: u64, at: MonoNs, sink: Sink<'_>) {
        if let Some(Some(known)) = self.hops.get(lane as usize).filter(|_| count > 0) {
            self.ahead += count;
            let hop = Some(known.id);
            let cause = LostCause::QueueFull;
            sink(&Event {
                at,
                what: What::Lost(Lost { hop, count, cause }),
            });
        }
    }

    /// The kernel side counts so many more records as lost: how many of them were not told yet.
    pub(super) fn not_told(&mut self, count: u64) -> u64 {
        let told = count.min(self.ahead);
        self.ahead -= told;
        count - told
    }

    /// The receiver asked for the next message.
    pub(super) fn handled(&mut self, call: &Call, sink: Sink<'_>) {
        let Some(name) = self.matcher.handled(call) else { return };
        if let Some(Some(known)) = self.hops.get(name.lane as usize) {
            let id = FrameId {
                hop: known.id,
                lane: self.ids.life(),
                seq: name.seq,
            };
            sink(&Event {
                at: call.at,
                what: What::Handled(id),
            });
        }
    }

    /// Says whether what is delivered behind the path's last hops can be seen, when that has changed.
    pub(super) fn delivers(&mut self, seen: bool, sink: Sink<'_>) {
        if std::mem::replace(&mut self.sight.delivered, seen) == seen {
            return;
        }
        for known in self.hops.iter().flatten() {
            announce(known, &self.roles, self.sight, MonoNs::now(), sink);
        }
    }

    /// A send was refused; its number will be used again.
    pub(super) fn unsent(&mut self, call: &Call) {
        self.matcher.unsent(call);
    }

    /// A frame whose sender is not watched: it can only be read where it was taken.
    fn taken_unsent(&mut self, message: &Message<'_>, sink: Sink<'_>) {
        let Call {
            at,
            socket,
            tid,
            wakeup,
            ..
        } = message.call;
        let by = Some(ThreadId { pid: socket.pid, tid });
        if self.roles.watches_a_sender() {
            return;
        }
        let Ok(Ok(batch)) = whole(message).map(|bytes| self.decoder.decode(bytes)) else {
            return;
        };
        if batch.is_empty() {
            return;
        }
        self.wire = Some(Release {
            schema: batch.schema(),
            waiter: batch.waiter(),
        });
        let known = self.unseen_senders.get_mut(&socket);
        let (hop, seq) = if let Some((hop, seq)) = known {
            *seq += 1;
            (*hop, *seq)
        } else {
            let (from, to) = (
                Part::unwatched_sender(batch.kind()),
                self.roles.receiver(socket.pid, batch.kind()),
            );
            let name = format!("{}->{}", from.word(), to.word());
            let Some(id) = self.ids.meet(&name) else {
                self.left_out += 1;
                return;
            };
            self.unseen_senders.insert(socket, (id, 0));
            let hop = Hop {
                id,
                name: &name,
                endpoint: "",
                worker: to.rank(),
                origin: false,
                last: to.is_tokenizer(),
                sees: Sees {
                    taken: true,
                    handled: self.sight.handled,
                    delivered: self.sight.delivered,
                    ..Sees::default()
                },
            };
            sink(&Event {
                at,
                what: What::Hop(hop),
            });
            (id, 0)
        };
        let id = FrameId {
            hop,
            lane: self.ids.life(),
            seq,
        };
        let frame = Frame {
            id,
            bytes: message.bytes,
            kind: batch.kind(),
            ids: batch.ids(),
            chunks: batch.chunks(),
        };
        sink(&Event {
            at,
            what: What::Taken(Taken {
                id,
                wakeup,
                by,
                frame: Some(frame),
            }),
        });
    }
}

/// The message's bytes, if they were copied whole.
fn whole<'m>(message: &Message<'m>) -> Result<&'m [u8], &'static str> {
    if message.more {
        Err("multipart")
    } else if message.payload.len() as u64 == message.bytes {
        Ok(message.payload)
    } else {
        Err("cut-by-capture")
    }
}

fn name_of(from: Part, to: Option<Receiver>) -> String {
    format!("{}->{}", from.word(), to.map_or("?", |to| to.part.word()))
}

fn announce(known: &Known, roles: &Roles, sight: Sight, at: MonoNs, sink: Sink<'_>) {
    let taken = known.to.is_some() || roles.may_see_takes_of(known.from);
    let hop = Hop {
        id: known.id,
        name: &name_of(known.from, known.to),
        endpoint: known
            .to
            .and_then(|to| to.pid)
            .map_or("", |to| roles.endpoint(known.sender, to)),
        worker: known.to.and_then(|to| to.part.rank()),
        origin: known.from.is_scheduler() && known.kind != Kind::Control,
        last: known.to.is_some_and(|to| to.part.is_tokenizer()),
        sees: Sees {
            sent: true,
            taken,
            handled: taken && sight.handled,
            delivered: sight.delivered && known.to.is_some_and(|to| to.part.is_tokenizer()),
            ..Sees::default()
        },
    };
    sink(&Event {
        at,
        what: What::Hop(hop),
    });
}

#[cfg(test)]
mod tests;
