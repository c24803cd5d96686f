// SPDX-License-Identifier: GPL-2.0-or-later

package page_test

import (
	"bytes"
	"context"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browser runs Debian's headless browser, which scripts/provision installs, on a
// page. It returns what it printed and what went to its log.
func browser(t *testing.T, page string, args ...string) (stdout, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	home := t.TempDir()
	all := append([]string{
		"--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + home, "--enable-logging=stderr", "--window-size=1280,2400",
	}, args...)
	cmd := exec.CommandContext(ctx, "chromium-headless-shell", append(all, "file://"+page)...)
	cmd.Env = append(os.Environ(), "HOME="+home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), errs.String())
	return out.String(), errs.String()
}

// complaints are the lines of the browser's log that are about the page.
func complaints(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "CONSOLE") || strings.Contains(line, "Uncaught") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestABrowserRendersThePage(t *testing.T) {
	dir := t.TempDir()
	for name, nodes := range map[string]int{"few": 2, "many": 128} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, name+".html")
			require.NoError(t, os.WriteFile(file, []byte(drawn(t, nodes)), 0o600))
			dom, log := browser(t, file, "--dump-dom")
			require.Empty(t, complaints(log))
			require.Equal(t, 2, strings.Count(dom, `aria-label="waits"`))
			require.Equal(t, 2, strings.Count(dom, `class="axis"`), "one for each policy")
			require.Equal(t, 2, strings.Count(dom, `class="timeline"`))

			shown := map[string][3]uint32{}
			for theme, scheme := range map[string]string{"light": "1", "dark": "0"} {
				shot := filepath.Join(dir, name+theme+".png")
				_, log := browser(t, file, "--screenshot="+shot, "--blink-settings=preferredColorScheme="+scheme)
				require.Empty(t, complaints(log))
				f, err := os.Open(shot)
				require.NoError(t, err)
				picture, err := png.Decode(f)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				r, g, b, _ := picture.At(2, 2).RGBA()
				shown[theme] = [3]uint32{r >> 8, g >> 8, b >> 8}
			}
			require.Equal(t, [3]uint32{255, 255, 255}, shown["light"])
			require.Equal(t, [3]uint32{0x14, 0x17, 0x1a}, shown["dark"])
		})
	}
}

// A page with a script that fails would be noticed.
func TestTheBrowserTellsOfScriptErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.html")
	require.NoError(t, os.WriteFile(file, []byte(`<!DOCTYPE html><script>nobody.knows()</script>`), 0o600))
	_, log := browser(t, file, "--dump-dom")
	require.NotEmpty(t, complaints(log))
}
