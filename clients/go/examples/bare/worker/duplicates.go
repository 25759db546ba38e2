//go:build unix

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/pillion-host/pillion/clients/go/pillionv1"
	"google.golang.org/protobuf/proto"
)

const (
	mostFiles   = 1_000_000
	mostPaths   = 20 // A group of equal files names no more of them.
	reportEvery = 250 * time.Millisecond
	mebibyte    = 1 << 20
)

// duplicatesDescriptor is what the sidecar and its callers are told of the tool.
var duplicatesDescriptor = &pillionv1.ToolDescriptor{
	Name:  "find_duplicates",
	Title: proto.String("Find duplicate files"),
	Description: "Says which files of a folder have equal contents, and how many bytes would be freed if one of each " +
		"were kept. Follows no symbolic links; hard links to one file count as that one file.",
	InputSchema: []byte(`{
		"type": "object",
		"properties": {
			"path": {"type": "string", "maxLength": 4096, "description": "A folder within the served one. Unset: all of it."},
			"minimum_bytes": {"type": "integer", "minimum": 0, "maximum": 9007199254740991,
				"description": "Leave out smaller files. Unset: 1, which leaves out empty ones."},
			"limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "How many groups to list. Unset: 10."}
		},
		"additionalProperties": false
	}`),
	OutputSchema: []byte(`{
		"type": "object",
		"properties": {
			"files": {"type": "integer", "minimum": 0, "description": "How many files were looked at."},
			"bytes": {"type": "integer", "minimum": 0, "description": "Their size in all."},
			"unreadable": {"type": "integer", "minimum": 0, "description": "How many files and folders could not be read."},
			"reclaimable_bytes": {"type": "integer", "minimum": 0, "description": "What the copies beyond the first take."},
			"groups_found": {"type": "integer", "minimum": 0},
			"groups": {"type": "array", "description": "Those that free most come first.", "items": {
				"type": "object",
				"properties": {
					"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
					"bytes": {"type": "integer", "minimum": 0, "description": "The size of each file."},
					"copies": {"type": "integer", "minimum": 2},
					"paths": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 20}
				},
				"required": ["sha256", "bytes", "copies", "paths"],
				"additionalProperties": false
			}}
		},
		"required": ["files", "bytes", "unreadable", "reclaimable_bytes", "groups_found", "groups"],
		"additionalProperties": false
	}`),
	Annotations: &pillionv1.ToolAnnotations{
		ReadOnly: proto.Bool(true), Idempotent: proto.Bool(true), OpenWorld: proto.Bool(false),
	},
	Effects: pillionv1.Effects_EFFECTS_READ,
}

type group struct {
	SHA256 string   `json:"sha256"`
	Bytes  int64    `json:"bytes"`
	Copies int      `json:"copies"`
	Paths  []string `json:"paths"`
}

func (g group) reclaimable() int64 { return g.Bytes * int64(g.Copies-1) }

type duplicates struct {
	Files       int     `json:"files"`
	Bytes       int64   `json:"bytes"`
	Unreadable  int     `json:"unreadable"`
	Reclaimable int64   `json:"reclaimable_bytes"`
	GroupsFound int     `json:"groups_found"`
	Groups      []group `json:"groups"`
}

// findDuplicates is the tool: JSON in, JSON out. It reaches nothing outside the served folder: os.Root sees to that.
func findDuplicates(ctx context.Context, served *os.Root, arguments []byte, report report) ([]byte, error) {
	// The sidecar has checked the arguments against the schema. A JSON integer may be written as 1e1: hence the floats.
	wanted := struct {
		Path    string  `json:"path"`
		Minimum float64 `json:"minimum_bytes"`
		Limit   float64 `json:"limit"`
	}{".", 1, 10}
	if err := json.Unmarshal(arguments, &wanted); err != nil {
		return nil, err
	}
	folder, err := served.OpenRoot(wanted.Path)
	if err != nil {
		return nil, refusal("The path must name a folder inside the one that this worker serves.")
	}
	defer folder.Close()
	found := &duplicates{Groups: []group{}}
	bySize, err := found.list(ctx, folder, int64(wanted.Minimum), report)
	if err != nil {
		return nil, err
	}
	if err := found.compare(ctx, folder, bySize, report); err != nil {
		return nil, err
	}
	found.Groups = found.Groups[:min(len(found.Groups), int(wanted.Limit))]
	return json.Marshal(found)
}

// list answers the paths of the regular files by their size.
func (found *duplicates) list(
	ctx context.Context, folder *os.Root, minimum int64, report report,
) (map[int64][]string, error) {
	type inode struct{ device, number uint64 }
	bySize, linked, next := map[int64][]string{}, map[inode]bool{}, time.Now().Add(reportEvery)
	err := fs.WalkDir(folder.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			found.Unreadable++
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		info, err := entry.Info()
		if err != nil || info.Size() < minimum {
			return nil // It is gone, or too small.
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
			file := inode{uint64(stat.Dev), stat.Ino}
			if linked[file] {
				return nil
			}
			linked[file] = true
		}
		if found.Files++; found.Files > mostFiles {
			return refusal(fmt.Sprintf("There are more than %d files: name a smaller folder by path.", mostFiles))
		}
		found.Bytes += info.Size()
		bySize[info.Size()] = append(bySize[info.Size()], path)
		if time.Now().After(next) {
			next = time.Now().Add(reportEvery)
			report(fmt.Sprintf("listed %d files", found.Files), 0, 0)
		}
		return nil
	})
	report(fmt.Sprintf("listed %d files, %s in all", found.Files, size(found.Bytes)), 0, 0)
	return bySize, err
}

// compare groups files of one size by their digest. Groups that free most come first.
func (found *duplicates) compare(
	ctx context.Context, folder *os.Root, bySize map[int64][]string, report report,
) error {
	var done, total, tenths int64
	for bytes, paths := range bySize {
		if len(paths) > 1 {
			total += bytes * int64(len(paths))
		}
	}
	next := time.Now().Add(reportEvery)
	advance := func(read int64) {
		done += read
		if now := time.Now(); total > 0 && (done*10 >= (tenths+1)*total || now.After(next)) {
			tenths, next = done*10/total, now.Add(reportEvery)
			report(fmt.Sprintf("compared %s of %s", size(done), size(total)), done, total)
		}
	}
	for bytes, paths := range bySize {
		if len(paths) < 2 {
			continue
		}
		byDigest := map[string][]string{}
		for _, path := range paths {
			digest, err := digest(ctx, folder, path, bytes, advance)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				found.Unreadable++
				continue
			}
			byDigest[digest] = append(byDigest[digest], path)
		}
		for digest, equal := range byDigest {
			if len(equal) > 1 {
				slices.Sort(equal)
				made := group{digest, bytes, len(equal), equal[:min(len(equal), mostPaths)]}
				found.Groups = append(found.Groups, made)
				found.Reclaimable += made.reclaimable()
			}
		}
	}
	slices.SortFunc(found.Groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.reclaimable(), a.reclaimable()), cmp.Compare(a.Paths[0], b.Paths[0]))
	})
	found.GroupsFound = len(found.Groups)
	report(fmt.Sprintf("found %d groups of equal files", found.GroupsFound), total, total)
	return nil
}

// size is a number of bytes for people.
func size(bytes int64) string {
	amount, units := float64(bytes), []string{"bytes", "kB", "MB", "GB", "TB"}
	for amount >= 999.5 && len(units) > 1 {
		amount, units = amount/1000, units[1:]
	}
	return fmt.Sprintf("%.3g %s", amount, units[0])
}

// digest reads a file of this size. If it has changed since it was listed, that is an error.
func digest(ctx context.Context, folder *os.Root, path string, bytes int64, advance func(int64)) (string, error) {
	// Without this a named pipe that took the file's place would block.
	file, err := folder.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash, left := sha256.New(), bytes+1 // One byte more, to see that there is none.
	for err == nil && ctx.Err() == nil {
		var read int64
		read, err = io.CopyN(hash, file, min(left, mebibyte))
		left -= read
		advance(read)
	}
	if err != io.EOF || left != 1 {
		return "", errors.New("the file has changed")
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
