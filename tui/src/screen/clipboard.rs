//! Clipboard access through the terminal with OSC 52, which works over ssh and, if allowed, through tmux.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Escape sequence that copies `text` to the clipboard of the user's terminal.
pub(super) fn copy(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", base64(text.as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, &b| word << 8 | u32::from(b)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let six = (word >> (18 - 6 * place)) & 63;
            out.push(if place <= three.len() {
                ALPHABET[six as usize] as char
            } else {
                '='
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_rfc_4648_requires() {
        let known = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}~", "w79+"),
        ];
        for (plain, coded) in known {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(copy("f"), "\x1b]52;c;Zg==\x07");
    }
}
