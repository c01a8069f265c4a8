//! NVIDIA Dynamo: a frontend and a response plane around workers of another engine.

#[cfg(target_os = "linux")]
pub mod discover;
