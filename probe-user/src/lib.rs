//! The probe's user side: what runs where (`discover`), what may be attached (`capability`, `degraded`), and what the
//! attached programs saw (`reader`, `matcher`), with CPU and socket queues beside it (`cpu`, `queue`).

pub mod discover;
