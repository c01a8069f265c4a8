//! Source of `tokengap run`: starts an engine and puts the relay in front of each of its sockets as it appears.

mod child;
mod folder;
mod mover;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trace::event::{self, What};
use trace::{Event, MonoNs};
use zmq_tap::relay::{Endpoint, Gate, Pair};
use zmq_tap::splice::Place;
use zmq_tap::tap::{Tap, TapHop};

pub(crate) use child::{Child, Forwarding};
pub(crate) use folder::Private;
use mover::{Mover, News};

use crate::known::Known;

use crate::guard::Guard;
use crate::source::{Flow, Source, TapSource, wire_forms};

/// Interval of checks whether the child has exited.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A child whose sockets are relayed.
pub(crate) struct Run {
    tap: TapSource,
    child: Arc<Child>,
    mover: Option<Mover>,
    news: Receiver<News>,
    /// Restored when the relay has ended, before the guard looks for leftovers.
    places: Vec<Place>,
    past: Vec<String>,
    moved: usize,
    looked: Instant,
    engine: Option<Known>,
    /// Set if the engine facts have changed since the last engine event.
    engine_is_news: bool,
    ending: bool,
    _guard: Guard,
}

impl Run {
    /// Watches `folder`, the temporary folder of `child`. `guard` restores moved sockets if this process is killed.
    pub(crate) fn start(tap: Tap, child: Arc<Child>, folder: &Private, guard: Guard) -> anyhow::Result<Self> {
        let (mover, news) = Mover::start(folder, child.pid())?;
        Ok(Self {
            tap: TapSource::new(tap),
            child,
            mover: Some(mover),
            news,
            places: Vec::new(),
            past: Vec::new(),
            moved: 0,
            looked: Instant::now(),
            engine: None,
            engine_is_news: false,
            ending: false,
            _guard: guard,
        })
    }

    /// Processes news from the mover.
    fn take_news(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        for news in self.news.try_iter() {
            match news {
                News::Moved(listener, place) => {
                    let pair = Pair {
                        listen: Endpoint::Path(place.shown()),
                        upstream: Endpoint::Path(place.aside()),
                    };
                    let hop = TapHop {
                        endpoint: Some(pair.listen.to_string()),
                        ..TapHop::new(pair)
                    };
                    match self.tap.tap_mut().add(hop, listener, Gate::open()) {
                        Ok(()) => {
                            self.moved += 1;
                            // An engine that listens again gives up its previous socket.
                            self.places.retain(Place::is_held);
                            self.places.push(place);
                        }
                        Err(error) => self.past.push(format!("{}: {error}", place.shown().display())),
                    }
                }
                News::Engine(known) => (self.engine, self.engine_is_news) = (Some(known), true),
                News::Hop(listen, name) => {
                    let listen = Endpoint::Path(listen);
                    self.tap
                        .tap_mut()
                        .name(&listen, &name, MonoNs::now(), &mut |event, _| sink(event));
                }
                News::Past(told) => {
                    tracing::warn!("{told}");
                    self.past.push(told);
                }
            }
        }
    }

    /// Handles the exit of the child: no more sockets are moved, and the relay drains.
    fn wind_up(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        self.ending = true;
        self.mover = None;
        self.take_news(sink);
        self.tap.stop();
    }

    /// Polls the relay.
    fn passed(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        let flow = self.tap.poll(sink);
        if flow == Flow::Ended {
            self.places.clear();
        }
        flow
    }
}

impl Source for Run {
    fn kind(&self) -> &'static str {
        "run"
    }

    fn is_in_the_path(&self) -> bool {
        true
    }

    fn keep_ids(&mut self) {
        self.tap.keep_ids();
    }

    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        if !self.ending {
            self.take_news(sink);
            if self.looked.elapsed() >= LOOK_EVERY {
                self.looked = Instant::now();
                if self.child.has_ended() {
                    self.wind_up(sink);
                }
            }
        }
        let Some(known) = self.engine.take() else {
            return self.passed(sink);
        };
        if std::mem::take(&mut self.engine_is_news) {
            let what = What::Engine(known.or(event::Engine::default()));
            sink(&Event {
                at: MonoNs::now(),
                what,
            });
        }
        let flow = self.passed(&mut |event| known.hand_on(event, sink));
        self.engine = Some(known);
        flow
    }

    /// Asks the child to exit, which ends the run.
    fn stop(&mut self) {
        self.child.ask_to_end();
    }

    fn under_way(&self) -> Option<String> {
        (!self.ending).then(|| format!("waiting for {} to end", self.child.name()))
    }

    fn wire(&self) -> Option<Value> {
        let mut wire = wire_forms(self.tap.tap());
        wire["run"] = json!({"sockets_relayed": self.moved, "past_the_relay": self.past});
        Some(wire)
    }

    fn degraded(&self) -> Vec<String> {
        let mut degraded = self.tap.degraded();
        degraded.extend(self.past.iter().cloned());
        if self.moved == 0 {
            degraded.push(format!(
                "no socket to relay appeared in {}'s temporary folder: it speaks TCP, or ignores TMPDIR",
                self.child.name()
            ));
        }
        degraded
    }
}
