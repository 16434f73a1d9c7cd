//! Columns of GUIDs, as text or as 16 bytes.

use std::borrow::Cow;

use arrow_schema::DataType;
use ssbroker_core::route::BLOCK;
use ssbroker_core::{Guid, GuidReader, InvalidKind};

use crate::bits::{ones, set_bits};
use crate::error::{Error, Result};
use crate::read::Source;
use crate::view::BytesView;

const GUID_FORMS: &str = "a GUID: 36 characters (braces allowed) or 16 bytes";

/// A column of GUIDs.
#[derive(Debug)]
pub(crate) struct Guids<'a> {
    pub(crate) view: BytesView<'a>,
    reader: GuidReader,
    source: Source<'a>,
    column: &'static str,
}

impl<'a> Source<'a> {
    /// A column of GUIDs that must be there by one of two names, and none of them null.
    pub(crate) fn required_guids(&self, name: &'static str, other: &'static str) -> Result<Cow<'a, [[u8; 16]]>> {
        let guids = self.guids(name)?.map_or_else(|| self.guids(other), |guids| Ok(Some(guids)))?;
        let guids = guids.ok_or_else(|| self.mistyped(name, GUID_FORMS, None))?;
        guids.view.first_null().map_or(Ok(()), |row| Err(self.null(guids.column, row, GUID_FORMS)))?;
        if let Some(bytes) = guids.view.fixed(16) {
            return Ok(Cow::Borrowed(bytes.as_chunks().0));
        }
        (0..self.batch.num_rows()).map(|row| guids.get(row).map(|guid| guid.0)).collect::<Result<_>>().map(Cow::Owned)
    }

    /// A column of GUIDs that may be left out.
    pub(crate) fn guids(&self, name: &'static str) -> Result<Option<Guids<'a>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        let view = BytesView::new(array).ok_or_else(|| self.mistyped(name, GUID_FORMS, Some(array.data_type())))?;
        if matches!(array.data_type(), DataType::FixedSizeBinary(size) if *size != 16) {
            return Err(self.mistyped(name, GUID_FORMS, Some(array.data_type())));
        }
        Ok(Some(Guids { view, reader: GuidReader::best(), source: *self, column: name }))
    }
}

impl Guids<'_> {
    /// The GUIDs of `len` rows from `start`, of at most a block; the result has one bit for each that is there.
    #[inline]
    pub(crate) fn get_block(&self, start: usize, len: usize, into: &mut [Guid]) -> Result<u64> {
        let valid = self.view.valid_bits(start, len);
        if self.view.is_text {
            self.read_texts(start, len, valid, into)?;
        } else if let Some(bytes) = self.view.run::<16>(start, len) {
            for (guid, bytes) in into.iter_mut().zip(bytes) {
                *guid = Guid(*bytes);
            }
        } else {
            self.read_each(start, valid, into)?;
        }
        Ok(valid)
    }

    /// Only looks whether `len` rows from `start` are GUIDs, where nobody asks which. There is room for them in `room`.
    #[inline]
    pub(crate) fn check_block(&self, start: usize, len: usize, room: &mut [Guid]) -> Result<u64> {
        if !self.view.is_text && self.view.run::<16>(start, len).is_some() {
            return Ok(self.view.valid_bits(start, len));
        }
        self.get_block(start, len, room)
    }

    pub(crate) fn column(&self) -> &'static str {
        self.column
    }

    /// The GUID of a row that is not null.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Result<Guid> {
        let bytes = self.view.get(row).map_err(|_| self.source.out_of_bounds(self.column, row))?;
        let guid = if self.view.is_text { Guid::parse(bytes) } else { bytes.try_into().map(Guid).ok() };
        guid.ok_or_else(|| self.wrong(row, bytes))
    }

    /// The GUID of a row.
    pub(crate) fn optional(&self, row: usize) -> Result<Option<Guid>> {
        if self.view.is_null(row) { Ok(None) } else { self.get(row).map(Some) }
    }

    fn read_texts(&self, start: usize, len: usize, valid: u64, into: &mut [Guid]) -> Result<()> {
        self.view.ask_for(start + len, len);
        let run = if valid == ones(len) { self.view.run::<36>(start, len) } else { None };
        let all_read = if let Some(texts) = run {
            self.reader.read(texts.iter().map(Some).enumerate(), into)
        } else {
            let mut texts = [None; BLOCK];
            self.view.for_each(start, valid, |row, text| texts[row] = text.and_then(Guid::bare));
            self.reader.read(set_bits(valid).map(|row| (row, texts[row])), into)
        };
        if all_read { Ok(()) } else { self.read_each(start, valid, into) }
    }

    /// One by one, whatever they are.
    fn read_each(&self, start: usize, valid: u64, into: &mut [Guid]) -> Result<()> {
        for row in set_bits(valid) {
            into[row] = self.get(start + row).map_err(|error| self.unreadable(start, valid).unwrap_or(error))?;
        }
        Ok(())
    }

    /// What cannot be read at all is told before what is no GUID.
    #[cold]
    fn unreadable(&self, start: usize, valid: u64) -> Option<Error> {
        let row = set_bits(valid).find(|&row| self.view.get(start + row).is_err())?;
        Some(self.source.out_of_bounds(self.column, start + row))
    }

    #[cold]
    fn wrong(&self, row: usize, bytes: &[u8]) -> Error {
        let shown = if self.view.is_text { bytes.to_vec() } else { hex(bytes).into_bytes() };
        self.source.invalid(InvalidKind::Guid, self.column, row, Some(&shown), GUID_FORMS)
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().take(40).fold(String::from("0x"), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
