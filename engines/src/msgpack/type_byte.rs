//! Type bytes of msgpack, named as in its specification. Every value begins with one. In the names of short containers, strings and
//! extensions, the number is the length; in other names, it is the number of bits of the value or of its length.

/// The largest integer that is its own type byte.
pub(crate) const FIXINT_MAX: u8 = 0x7f;
pub(crate) const FIXMAP_0: u8 = 0x80;
pub(crate) const FIXMAP_1: u8 = 0x81;
pub(crate) const FIXMAP_15: u8 = 0x8f;
pub(crate) const FIXARRAY_0: u8 = 0x90;
pub(crate) const FIXARRAY_1: u8 = 0x91;
pub(crate) const FIXARRAY_2: u8 = 0x92;
pub(crate) const FIXARRAY_3: u8 = 0x93;
pub(crate) const FIXARRAY_4: u8 = 0x94;
pub(crate) const FIXARRAY_7: u8 = 0x97;
pub(crate) const FIXARRAY_9: u8 = 0x99;
pub(crate) const FIXARRAY_15: u8 = 0x9f;
pub(crate) const FIXSTR_0: u8 = 0xa0;
pub(crate) const FIXSTR_1: u8 = 0xa1;
pub(crate) const FIXSTR_31: u8 = 0xbf;
pub(crate) const NIL: u8 = 0xc0;
/// Never used.
pub(crate) const RESERVED: u8 = 0xc1;
pub(crate) const FALSE: u8 = 0xc2;
pub(crate) const TRUE: u8 = 0xc3;
pub(crate) const BIN_8: u8 = 0xc4;
pub(crate) const BIN_32: u8 = 0xc6;
pub(crate) const EXT_8: u8 = 0xc7;
pub(crate) const EXT_32: u8 = 0xc9;
pub(crate) const FLOAT_32: u8 = 0xca;
pub(crate) const FLOAT_64: u8 = 0xcb;
pub(crate) const UINT_8: u8 = 0xcc;
pub(crate) const UINT_16: u8 = 0xcd;
pub(crate) const UINT_32: u8 = 0xce;
pub(crate) const UINT_64: u8 = 0xcf;
pub(crate) const INT_8: u8 = 0xd0;
pub(crate) const INT_16: u8 = 0xd1;
pub(crate) const INT_32: u8 = 0xd2;
pub(crate) const INT_64: u8 = 0xd3;
pub(crate) const FIXEXT_1: u8 = 0xd4;
pub(crate) const FIXEXT_16: u8 = 0xd8;
pub(crate) const STR_8: u8 = 0xd9;
pub(crate) const STR_32: u8 = 0xdb;
pub(crate) const ARRAY_16: u8 = 0xdc;
pub(crate) const ARRAY_32: u8 = 0xdd;
pub(crate) const MAP_16: u8 = 0xde;
pub(crate) const MAP_32: u8 = 0xdf;
/// The type byte of -32. The negative integers up to -1 follow.
pub(crate) const NEGATIVE_FIXINT_MIN: u8 = 0xe0;
