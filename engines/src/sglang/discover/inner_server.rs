//! The Rust server of 0.5.17 and later (`SGLANG_RUST_SERVER=1`): threads in a scheduler that tokenize, detokenize and serve HTTP. Each
//! scheduler that serves clients has loaded its extension module.

use std::path::Path;

use probe_user::discover::{Function, InnerServer, Role};

/// The server's role in hop names. No process has it.
const SERVER: Role = Role::new(7, "server", Function::Receiver);

pub(super) const INNER_SERVER: InnerServer = InnerServer {
    role: SERVER,
    is_extension,
    // The second name up to 0.5.18.
    methods: &["push_decode_result_batch", "push_batch"],
};

/// Module and folder of the extension: the second row in 0.5.17.
const MODULES: [(&str, &str); 2] = [
    ("sglang/srt/rust_extensions", "_server."),
    ("sglang/srt/server", "_core."),
];

fn is_extension(mapped: &Path) -> bool {
    let Some((folder, name)) = mapped.parent().zip(mapped.file_name()) else {
        return false;
    };
    let begins = |start: &str| name.as_encoded_bytes().starts_with(start.as_bytes());
    MODULES
        .iter()
        .any(|(module, start)| folder.ends_with(module) && begins(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_recognised_in_every_release() {
        let is = |path: &str| is_extension(Path::new(path));
        let packages = "/opt/venv/lib/python3.11/site-packages/sglang/srt";
        assert!(is(&format!(
            "{packages}/rust_extensions/_server.cpython-311-x86_64-linux-gnu.so"
        )));
        assert!(is(&format!("{packages}/server/_core.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is(&format!("{packages}/grpc/_core.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is(&format!(
            "{packages}/rust_extensions/_multimodal.cpython-311-x86_64-linux-gnu.so"
        )));
        assert!(!is("/usr/lib/_server.so") && !is("/"));
    }
}
